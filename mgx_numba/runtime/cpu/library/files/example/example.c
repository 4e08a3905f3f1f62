/* Runs the program of the library @NAME@ once, on zeros, with open lengths of 1, and says how many bytes each result has. */
#include <stdio.h>
#include <stdlib.h>

#include "@NAME@.h"

static size_t bytes(const mgx_tensor *tensor)
{
    size_t found = mgx_type_size(tensor->type);
    for (size_t axis = 0; axis < tensor->rank; axis++)
        found *= tensor->lens[axis];
    return found;
}

/* Give an input lengths and memory of its own, or neither. */
static void prepare(mgx_tensor *input)
{
    size_t *lens = malloc((input->rank + 1) * sizeof *lens);
    for (size_t axis = 0; lens && axis < input->rank; axis++)
        lens[axis] = input->lens[axis] == MGX_OPEN_LENGTH ? 1 : input->lens[axis];
    input->lens = lens;
    input->data = lens ? calloc(bytes(input) + 1, 1) : NULL;
}

int main(void)
{
    const mgx_library *library = @NAME@_library();
    mgx_program *program = NULL;
    mgx_results *results = NULL;
    mgx_tensor *inputs = calloc(library->parameter_count + 1, sizeof *inputs);
    if (!inputs || library->load(NULL, &program)) {
        fprintf(stderr, "example: %s\n", inputs ? library->error() : "no memory");
        free(inputs);
        return 1;
    }
    for (size_t k = 0; k < library->parameter_count; k++) {
        inputs[k] = library->parameters[k];
        prepare(&inputs[k]);
    }
    const mgx_status status = library->compute(program, inputs, library->parameter_count, &results);
    if (status)
        fprintf(stderr, "example: %s\n", library->error());
    for (size_t k = 0; !status && k < results->count; k++)
        printf("output %zu: %zu bytes\n", k, bytes(&results->tensors[k]));
    library->free_results(results);
    for (size_t k = 0; k < library->parameter_count; k++) {
        free((void *)inputs[k].lens);
        free(inputs[k].data);
    }
    free(inputs);
    library->destroy(program);
    return status != MGX_SUCCESS;
}
