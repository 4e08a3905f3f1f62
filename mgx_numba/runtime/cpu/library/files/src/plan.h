/* What the parts of a library know of each other. The plan is data, written by the exporter as plan.c; kernels and the
 * executor's functions are objects that the package compiled. */
#ifndef MGX_PLAN_H
#define MGX_PLAN_H

#include "mgx_numba.h"

#define MGX_ALIGNMENT 64 /* bytes of a cache line */

typedef void (*mgx_kernel)(int64_t *args, int64_t begin, int64_t end);

/* Where an address in an argument block comes from: `offset` bytes into the arena, the weights or the call's job block,
 * or the kernel of this number. */
enum { MGX_FROM_ARENA, MGX_FROM_WEIGHTS, MGX_FROM_JOB, MGX_FROM_CODE };

typedef struct {
    int64_t slot, from, offset;
} mgx_relocation;

/* A bit of CPUID: leaf, subleaf, register (0 to 3 for a to d); `state` are the bits of XCR0 that the system must set. */
typedef struct {
    const char *name;
    uint32_t leaf, subleaf, reg, bit, state;
} mgx_feature;

/* An index that a step checks: whose, and what it must fit. */
typedef struct {
    const char *who, *what;
} mgx_check;

/* Of a plan with open lengths: the tables of its binding (the package's `Bound`), and the words of its block; addresses
 * are 0. The base of a write, if it is none of the executor's, is 3 more than an offset into the weights. */
typedef struct {
    const int64_t *words, *rows, *constants, *ranges, *sources, *numbers, *writes, *axes, *bytes;
    size_t constant_count, row_count, write_count, axis_count, patch_count;
} mgx_sizes;

typedef struct {
    const mgx_kernel *kernels;
    const int64_t *steps; /* records of the executor, `step_count` and one more; FUNCTION is a kernel's number */
    const int64_t *starts, *slots, *patches;
    const int64_t *operations; /* of a plan with jumps: what the executor's DRIVE follows */
    const mgx_relocation *relocations;
    const mgx_check *checks;
    const int64_t *first_check; /* of each step */
    const mgx_feature *features;
    size_t step_count, slot_count, relocation_count, operation_count, feature_count;
    size_t arena_bytes, weights_bytes;
    int64_t brief, is_long;
    int num_threads, shares; /* threads that it was compiled for; whether more than one can help */
    const unsigned char *weights; /* inside the library; NULL if they are beside it */
    unsigned char digest[32];     /* SHA-256 of the weights */
    mgx_sizes sizes;
} mgx_plan;

extern const mgx_library mgx_this_library;
extern const mgx_plan mgx_this_plan;

/* support.c */
mgx_status mgx_fail(mgx_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *mgx_last_error(void);
mgx_status mgx_check_cpu(void);

/* memory.c */
typedef struct {
    const unsigned char *data;
    void *pages; /* to give back; NULL if the weights are inside the library */
    size_t pages_bytes;
} mgx_weights;

void *mgx_take_pages(size_t size, void **pages, size_t *pages_bytes);
void mgx_give_pages(void *pages, size_t pages_bytes);
mgx_status mgx_load_weights(const mgx_options *options, mgx_weights *weights);

/* threads.c */
int mgx_default_threads(void);
void mgx_lock(void);
void mgx_unlock(void);
int64_t *mgx_pool(void);                /* the block that workers watch */
void mgx_add_user(void);                /* a program that uses the pool; `mgx_remove_user` of the last ends workers */
void mgx_remove_user(void);
void mgx_ensure_workers(int threads);   /* with the lock held */
unsigned mgx_enter_arithmetic(void);    /* rounding and denormals as kernels expect them; gives what to restore */
void mgx_leave_arithmetic(unsigned old);

#endif
