/* Programs: what the functions of a library do. */
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "program.h"

/* Results with memory of their own. */
struct kept {
    mgx_results results; /* first: its address is that of the whole */
    mgx_block *blocks;
    mgx_tensor tensors[MGX_OUTPUT_COUNT + 1];
    size_t lens[];
};

/* How many threads a run takes; 0 if what was asked for is not possible, which the message says. */
static int choose_threads(const mgx_options *options)
{
    const char *variable = getenv("MGX_NUM_THREADS");
    int chosen = options->num_threads;
    if (!chosen && variable && *variable) {
        char *end;
        const long value = strtol(variable, &end, 10);
        chosen = *end || value < 1 || value > MGX_MAX_THREADS ? -1 : (int)value;
    }
    if (!chosen) {
        const int most = mgx_default_threads();
        chosen = mgx_this_content.num_threads < most ? mgx_this_content.num_threads : most;
    }
    if (chosen < 1 || chosen > MGX_MAX_THREADS) {
        mgx_fail(MGX_BAD_PARAM, "num_threads, or the environment variable MGX_NUM_THREADS: expected 1 to %d",
                 MGX_MAX_THREADS);
        return 0;
    }
    return chosen;
}

static void destroy(mgx_program *program)
{
    if (!program)
        return;
    mgx_remove_user();
    mgx_free_plans(program);
    mgx_give_pages(program->weights.pages, program->weights.pages_bytes);
    free(program);
}

static mgx_status load(const mgx_options *given, mgx_program **made)
{
    mgx_options options = {.size = sizeof options};
    if (!made)
        return mgx_fail(MGX_BAD_PARAM, "load: where to put the program is NULL");
    *made = NULL;
    if (given && given->size != sizeof options)
        return mgx_fail(MGX_BAD_PARAM, "load: mgx_options has a size of %zu bytes, expected %zu", given->size,
                        sizeof options);
    if (given)
        options = *given;
    mgx_status status = mgx_check_cpu();
    if (status)
        return status;
    const int threads = choose_threads(&options);
    if (!threads)
        return MGX_BAD_PARAM;
    mgx_program *program = calloc(1, sizeof *program);
    if (!program)
        return mgx_fail(MGX_OUT_OF_MEMORY, "no memory for a program");
    program->threads = threads;
    mgx_add_user();
    status = mgx_load_weights(&options, &program->weights);
    if (!status)
        status = mgx_load_plans(program);
    if (status)
        destroy(program);
    else
        *made = program;
    return status;
}

/* Run the program; the status is one of the header's. */
static mgx_status run_whole(mgx_program *program, const mgx_inputs *inputs, mgx_result *results, mgx_block **blocks)
{
    const mgx_node *whole = &mgx_this_content.nodes[mgx_this_content.node_count - 1];
    const mgx_status status = mgx_run_node(program, whole, inputs, results, blocks);
    return status == MGX_UNSERVED ? MGX_BAD_PARAM : status;
}

static mgx_status run(mgx_program *program, const mgx_tensor *inputs, size_t input_count, const mgx_tensor *outputs,
                      size_t output_count)
{
    const mgx_inputs given = {inputs, input_count};
    mgx_result results[MGX_OUTPUT_COUNT + 1];
    mgx_block *blocks = NULL;
    if (!program)
        return mgx_fail(MGX_BAD_PARAM, "run: the program is NULL");
    if ((!inputs && input_count) || (!outputs && output_count))
        return mgx_fail(MGX_BAD_PARAM, "run: the tensors are NULL");
    if (output_count != MGX_OUTPUT_COUNT)
        return mgx_fail(MGX_BAD_PARAM, "%zu outputs are given, the program has %zu", output_count,
                        mgx_this_library.output_count);
    mgx_status status = mgx_check_apart(&given, outputs);
    if (status)
        return status;
    for (size_t k = 0; k < output_count; k++)
        results[k] = (mgx_result){.given = &outputs[k], .name = mgx_these_outputs[k].name};
    status = run_whole(program, &given, results, &blocks);
    mgx_give_blocks(&blocks, 1);
    return status;
}

static mgx_status compute(mgx_program *program, const mgx_tensor *inputs, size_t input_count, mgx_results **made)
{
    const mgx_inputs given = {inputs, input_count};
    mgx_result results[MGX_OUTPUT_COUNT + 1];
    mgx_block *blocks = NULL;
    if (!program || !made || (!inputs && input_count))
        return mgx_fail(MGX_BAD_PARAM, "compute: the program, the tensors or where to put results is NULL");
    *made = NULL;
    memset(results, 0, sizeof results);
    mgx_status status = run_whole(program, &given, results, &blocks);
    size_t axes = 0;
    for (size_t k = 0; !status && k < MGX_OUTPUT_COUNT; k++)
        axes += results[k].tensor.rank;
    struct kept *kept = status ? NULL : malloc(sizeof *kept + axes * sizeof(size_t));
    if (!status && !kept)
        status = mgx_fail(MGX_OUT_OF_MEMORY, "compute: no memory for results");
    if (!status) {
        size_t *lens = kept->lens;
        kept->results = (mgx_results){MGX_OUTPUT_COUNT, kept->tensors};
        for (size_t k = 0; k < MGX_OUTPUT_COUNT; k++) {
            mgx_tensor *tensor = &kept->tensors[k];
            *tensor = results[k].tensor;
            tensor->name = mgx_these_outputs[k].name;
            tensor->lens = memcpy(lens, tensor->lens, tensor->rank * sizeof *lens);
            lens += tensor->rank;
            results[k].block->kept = 1;
        }
        *made = &kept->results;
    }
    mgx_give_blocks(&blocks, status != MGX_SUCCESS);
    if (!status)
        kept->blocks = blocks;
    return status;
}

static void free_results(mgx_results *results)
{
    if (results)
        mgx_give_blocks(&((struct kept *)results)->blocks, 1);
    free(results);
}

static mgx_status output_lens(mgx_program *program, const mgx_tensor *inputs, size_t input_count, size_t *lens)
{
    const mgx_inputs given = {inputs, input_count};
    if (!program || !lens || (!inputs && input_count))
        return mgx_fail(MGX_BAD_PARAM, "output_lens: the program, the tensors or where to put lengths is NULL");
    const mgx_node *whole = &mgx_this_content.nodes[mgx_this_content.node_count - 1];
    const mgx_status status = mgx_node_lens(program, whole, &given, lens);
    return status == MGX_UNSERVED ? MGX_BAD_PARAM : status;
}

const mgx_library mgx_this_library = {
    MGX_API_VERSION,
    MGX_LIBRARY_NAME,
    MGX_PARAMETER_COUNT,
    MGX_OUTPUT_COUNT,
    mgx_these_parameters,
    mgx_these_outputs,
    load,
    run,
    destroy,
    mgx_last_error,
    output_lens,
    compute,
    free_results,
};

__attribute__((visibility("default"))) const mgx_library *MGX_LIBRARY_FUNCTION(void);
__attribute__((visibility("default"))) const mgx_library *mgx_get_library(void);

const mgx_library *MGX_LIBRARY_FUNCTION(void)
{
    return &mgx_this_library;
}

const mgx_library *mgx_get_library(void)
{
    return &mgx_this_library;
}
