/* Messages of errors, and whether this CPU has what the kernels were compiled for. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "plan.h"

#define MESSAGE_BYTES 1024 /* a few names and a shape each; longer ones are cut */

static _Thread_local char message[MESSAGE_BYTES];

mgx_status mgx_fail(mgx_status status, const char *format, ...)
{
    va_list arguments;
    int used = snprintf(message, sizeof message, "%s: ", mgx_this_library.name);
    if (used < 0 || used >= (int)sizeof message)
        used = 0;
    va_start(arguments, format);
    vsnprintf(message + used, sizeof message - (size_t)used, format, arguments);
    va_end(arguments);
    return status;
}

const char *mgx_last_error(void)
{
    return message;
}

static uint64_t enabled_state(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) /* OSXSAVE */
        return 0;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

static int has(const mgx_feature *feature, uint64_t state)
{
    unsigned words[4];
    if (!__get_cpuid_count(feature->leaf, feature->subleaf, &words[0], &words[1], &words[2], &words[3]))
        return 0;
    return (words[feature->reg] >> feature->bit & 1) && (feature->state & ~state) == 0;
}

/* Whether the system gives this process the state of AMX's tiles, for which it has to be asked (Linux 5.16,
 * Documentation/arch/x86/xstate.rst): ARCH_REQ_XCOMP_PERM, 0x1023, of component 18. */
static int may_use_tiles(void)
{
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

mgx_status mgx_check_cpu(void)
{
    const uint64_t state = enabled_state();
    const uint64_t tiles = (uint64_t)1 << 18;
    char missing[MESSAGE_BYTES / 2] = "";
    int asks_for_tiles = 0;
    for (size_t k = 0; k < mgx_this_content.feature_count; k++) {
        const mgx_feature *feature = &mgx_this_content.features[k];
        asks_for_tiles |= (feature->state & tiles) != 0;
        if (!has(feature, state) && strlen(missing) + strlen(feature->name) + 2 < sizeof missing) {
            strcat(missing, " ");
            strcat(missing, feature->name);
        }
    }
    if (missing[0])
        return mgx_fail(MGX_UNSUPPORTED_CPU, "this CPU lacks features that the library was compiled for:%s", missing);
    if (asks_for_tiles && !may_use_tiles())
        return mgx_fail(MGX_UNSUPPORTED_CPU, "the system does not let this process use AMX");
    return MGX_SUCCESS;
}
