/* What the parts of a library know of each other. Plans are data, written by the exporter as plan.c; kernels and the
 * executor's functions are objects that the package compiled. */
#ifndef MGX_PLAN_H
#define MGX_PLAN_H

#include "mgx_numba.h"

#define MGX_ALIGNMENT 64 /* bytes of a cache line */

/* A status inside of the library, for `mgx_run_node`: a plan does not serve the lengths of the inputs. */
#define MGX_UNSERVED ((mgx_status)-1)

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
    size_t symbol_count, constant_count, row_count, write_count, axis_count, patch_count;
} mgx_sizes;

typedef struct {
    const mgx_tensor *parameters, *outputs; /* outputs have no names */
    const mgx_kernel *kernels;
    const int64_t *steps; /* records of the executor, `step_count` and one more; FUNCTION is a kernel's number */
    const int64_t *starts, *slots, *patches;
    const int64_t *operations; /* of a plan with jumps: what the executor's DRIVE follows */
    const mgx_relocation *relocations;
    const mgx_check *checks;
    const int64_t *first_check; /* of each step */
    size_t parameter_count, output_count;
    size_t step_count, slot_count, relocation_count, operation_count;
    size_t arena_bytes;
    int64_t brief, is_long;
    int shares; /* whether more than one thread can help */
    mgx_sizes sizes;
} mgx_plan;

/* A result of the first stage that takes its length from other results. MGX_COUNTED: its elements at the start, with the
 * lengths `lens`, of which -1 stands for the value of result `other`. MGX_SPACED: numbers from its value up to before
 * that of result `other`, in steps of result `delta`. */
enum { MGX_COUNTED, MGX_SPACED };

typedef struct {
    int kind;
    size_t number, other, delta, rank;
    const int64_t *lens;
} mgx_completed;

/* An input of the second stage. MGX_OF_RESULT: the first stage's result `number`. MGX_OF_SIZE: a tensor without elements
 * whose lengths tell the element of that result. MGX_OF_INPUT: the first stage's input `source`. MGX_OF_LENGTH: a tensor
 * without elements; its first length is that of axis `number` of the input `source`. */
enum { MGX_OF_RESULT, MGX_OF_SIZE, MGX_OF_INPUT, MGX_OF_LENGTH };

typedef struct {
    int kind;
    const char *name, *source;
    size_t number;
} mgx_passed;

/* What a program runs. MGX_PLAN: the plan of number `members[0]`. MGX_CHOICE: the first of the nodes `members` that serves
 * the lengths. MGX_STAGES: the node `members[0]`, then the node `members[1]`; `results` has for each result the stage, 0 or
 * 1, and the number of its result. */
enum { MGX_PLAN, MGX_CHOICE, MGX_STAGES };

typedef struct {
    int kind;
    size_t member_count, output_count;
    const size_t *members, *results;
    const mgx_completed *completed;
    const mgx_passed *passed;
    size_t completed_count, passed_count;
} mgx_node;

typedef struct {
    const mgx_plan *plans;
    const mgx_node *nodes; /* the last one is the program's */
    const mgx_feature *features;
    size_t plan_count, node_count, feature_count, weights_bytes;
    int num_threads;              /* that it was compiled for */
    const unsigned char *weights; /* inside the library; NULL if they are beside it */
    unsigned char digest[32];     /* SHA-256 of the weights */
} mgx_content;

extern const mgx_library mgx_this_library;
extern const mgx_content mgx_this_content;
extern const mgx_tensor mgx_these_parameters[], mgx_these_outputs[];

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

typedef struct mgx_block {
    struct mgx_block *next;
    int kept;
} mgx_block;

void *mgx_take_pages(size_t size, void **pages, size_t *pages_bytes);
void mgx_give_pages(void *pages, size_t pages_bytes);
mgx_status mgx_load_weights(const mgx_options *options, mgx_weights *weights);
void *mgx_take_block(mgx_block **blocks, size_t size); /* one more block: its memory of `size` bytes; NULL: there is none */
void mgx_give_blocks(mgx_block **blocks, int all);     /* free all, or those that are not kept */

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
