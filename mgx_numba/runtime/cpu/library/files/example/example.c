/* Runs the program of the library @NAME@ once, on zeros, and says how many bytes each result has. */
#include <stdio.h>
#include <stdlib.h>

#include "@NAME@.h"

/* `declared` with memory of its own. */
static mgx_tensor with_memory(mgx_tensor declared)
{
    size_t bytes = mgx_type_size(declared.type);
    for (size_t axis = 0; axis < declared.rank; axis++)
        bytes *= declared.lens[axis];
    bytes = (bytes + 63) / 64 * 64;
    declared.data = aligned_alloc(64, bytes ? bytes : 64);
    for (size_t k = 0; declared.data && k < bytes; k++)
        ((char *)declared.data)[k] = 0;
    return declared;
}

int main(void)
{
    const mgx_library *library = @NAME@_library();
    const size_t tensors = library->parameter_count + library->output_count;
    mgx_program *program = NULL;
    mgx_tensor *inputs = calloc(tensors + 1, sizeof *inputs);
    if (!inputs || library->load(NULL, &program)) {
        fprintf(stderr, "example: %s\n", inputs ? library->error() : "no memory");
        free(inputs);
        return 1;
    }
    mgx_tensor *outputs = inputs + library->parameter_count;
    for (size_t k = 0; k < library->parameter_count; k++)
        inputs[k] = with_memory(library->parameters[k]);
    for (size_t k = 0; k < library->output_count; k++)
        outputs[k] = with_memory(library->outputs[k]);
    const mgx_status status = library->run(program, inputs, library->parameter_count, outputs, library->output_count);
    if (status)
        fprintf(stderr, "example: %s\n", library->error());
    for (size_t k = 0; !status && k < library->output_count; k++) {
        size_t bytes = mgx_type_size(outputs[k].type);
        for (size_t axis = 0; axis < outputs[k].rank; axis++)
            bytes *= outputs[k].lens[axis];
        printf("output %zu: %zu bytes\n", k, bytes);
    }
    for (size_t k = 0; k < tensors; k++)
        free(inputs[k].data);
    free(inputs);
    library->destroy(program);
    return status != MGX_SUCCESS;
}
