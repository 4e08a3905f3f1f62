/* A compiled model as a shared library: what all such libraries have in common.
 *
 * A library called NAME has one function, `const mgx_library *NAME_library(void)`, declared in NAME.h, and the same under the
 * name `mgx_get_library` for those who open it with dlopen. Nothing else of it can be seen, so that any number of
 * libraries fit into one process.
 *
 * Every function may be called from any number of threads at once, but for `destroy`, after which the program is gone.
 */
#ifndef MGX_NUMBA_H
#define MGX_NUMBA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MGX_API_VERSION 4

#define MGX_OPEN_LENGTH ((size_t)-1) /* of a tensor that a library declares: known in a run alone */

typedef enum mgx_status {
    MGX_SUCCESS = 0,
    MGX_BAD_PARAM = 1,          /* a parameter, an output or an option is missing or wrong */
    MGX_BAD_WEIGHTS = 2,        /* the file of weights is missing, or of another library */
    MGX_UNSUPPORTED_CPU = 3,    /* the CPU, or the system, lacks what the library was compiled for */
    MGX_OUT_OF_MEMORY = 4,
    MGX_INDEX_OUT_OF_RANGE = 5, /* an index among the inputs' values does not fit; the outputs are undefined */
    MGX_BAD_VERSION = 6,        /* the library is of another version of this header */
    MGX_BAD_FILE = 7,           /* of C++: a file is not what it should be */
    MGX_COMPILER = 8,           /* of C++: the compiler, a process of mgx-numba-driver, is missing or has refused */
    MGX_NEEDS_VALUES = 9        /* `output_lens`: lengths depend on what the inputs hold */
} mgx_status;

/* Element types, numbered as in MIGraphX. */
typedef enum mgx_type {
    MGX_BOOL = 0,
    MGX_HALF = 1,
    MGX_FLOAT = 2,
    MGX_DOUBLE = 3,
    MGX_UINT8 = 4,
    MGX_INT8 = 5,
    MGX_UINT16 = 6,
    MGX_INT16 = 7,
    MGX_INT32 = 8,
    MGX_INT64 = 9,
    MGX_UINT32 = 10,
    MGX_UINT64 = 11,
    MGX_FP8E4M3FNUZ = 12,
    MGX_FP8E4M3FN = 13,
    MGX_FP8E5M2 = 14,
    MGX_BF16 = 15,
    MGX_FP8E5M2FNUZ = 16,
    MGX_TUPLE = 17, /* of no tensor, as the next */
    MGX_FP4X2 = 18
} mgx_type;

/* Bytes of one element; 0 for a number that is no type. */
static inline size_t mgx_type_size(mgx_type type)
{
    static const unsigned char sizes[] = {1, 2, 4, 8, 1, 1, 2, 2, 4, 8, 4, 8, 1, 1, 1, 2, 1};
    return (unsigned)type < sizeof(sizes) ? sizes[type] : 0;
}

/* A tensor whose elements lie in row-major order. A tensor without axes (rank 0) has one element. */
typedef struct mgx_tensor {
    const char *name; /* in UTF-8; not read of the outputs of a run, which go by their order */
    mgx_type type;
    size_t rank;
    const size_t *lens;
    void *data; /* at a multiple of the element's size; NULL where a library declares a tensor */
} mgx_tensor;

typedef struct mgx_options {
    size_t size;         /* sizeof(mgx_options) */
    const char *weights; /* path of the file of weights; NULL: NAME.weights beside the library */
    uint64_t weights_offset; /* where they begin inside of that file, a multiple of 64; 0: the file has nothing else */
    int num_threads;     /* of one run, the caller's included; 0: MGX_NUM_THREADS, else those that it was compiled for,
                            but no more than there are cores */
    int copy_weights;    /* 0: the weights are used where they lie in their file, which must stay as it is, and share
                            memory with all processes that do the same; else they are copied into large pages, from
                            where some systems read them faster */
} mgx_options;

/* Results with memory of their own. */
typedef struct mgx_results {
    size_t count;
    const mgx_tensor *tensors; /* in the library's order; their memory is at multiples of 64 bytes */
} mgx_results;

typedef struct mgx_program mgx_program;

typedef struct mgx_library {
    uint32_t api_version; /* MGX_API_VERSION of the library */
    const char *name;
    size_t parameter_count, output_count;
    const mgx_tensor *parameters, *outputs;

    /* Make a program that runs. `options` may be NULL. */
    mgx_status (*load)(const mgx_options *options, mgx_program **program);

    /* Run on inputs, in any order, of which names that the program has not are ignored; results are written to
     * `outputs`, in the library's order. Inputs are only read. No output may overlap another tensor. Memory at a multiple
     * of 64 bytes is fastest. */
    mgx_status (*run)(mgx_program *program, const mgx_tensor *inputs, size_t input_count, const mgx_tensor *outputs,
                      size_t output_count);

    /* Free a program, or NULL. The last one of a library ends its threads. */
    void (*destroy)(mgx_program *program);

    /* What was wrong with this thread's last call that failed, until its next call. */
    const char *(*error)(void);

    /* Write the lengths of the outputs for inputs of these shapes, those of one output after those of the other. What the
     * inputs hold is not read: MGX_NEEDS_VALUES if lengths depend on that. */
    mgx_status (*output_lens)(mgx_program *program, const mgx_tensor *inputs, size_t input_count, size_t *lens);

    /* Run on inputs as `run` does, and take memory for the results, until `free_results`. The results may outlive the
     * program, but not the library. */
    mgx_status (*compute)(mgx_program *program, const mgx_tensor *inputs, size_t input_count, mgx_results **results);

    /* Free results, or NULL. */
    void (*free_results)(mgx_results *results);
} mgx_library;

#ifdef __cplusplus
}
#endif

#endif
