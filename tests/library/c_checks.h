/* Checks of the C programs beside it, which end with 1 and a line at the first check that fails. */
#include <migraphx/migraphx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(call) need(call, #call)
#define REFUSED(wanted, call) refused(wanted, call, #call)

static void need(int status, const char* call)
{
    if(status == migraphx_status_success)
        return;
    printf("%s: status %d: %s\n", call, status, migraphx_last_error());
    exit(1);
}

static void require(bool holds, const char* title)
{
    if(holds)
        return;
    printf("failed: %s\n", title);
    exit(1);
}

static void refused(int wanted, int status, const char* call)
{
    if(status != wanted)
        printf("%s gives status %d, %d is wanted\n", call, status, wanted);
    else
        printf("%s\n", migraphx_last_error());
}

static char folder[1000];

static const char* in_folder(const char* name)
{
    static char paths[4][1100];
    static int next = 0;
    char* path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}
