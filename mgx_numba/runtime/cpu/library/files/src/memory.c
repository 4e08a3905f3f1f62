/* Memory in large pages, blocks of results, and the weights: inside the library, or in a file beside it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "layout.h"
#include "plan.h"

#define HUGE_PAGE ((size_t)2 << 20)   /* bytes, of x86-64 */
#define PIECE_BYTES ((size_t)64 << 20) /* read at a time: what takes some hundredths of a second */

void *mgx_take_pages(size_t size, void **pages, size_t *pages_bytes)
{
    if (size > SIZE_MAX - HUGE_PAGE)
        return NULL;
    *pages_bytes = size + HUGE_PAGE;
    *pages = mmap(NULL, *pages_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*pages == MAP_FAILED)
        return NULL;
    unsigned char *start = (unsigned char *)*pages + (-(uintptr_t)*pages & (HUGE_PAGE - 1));
    if (size >= HUGE_PAGE)
        madvise(start, size - size % HUGE_PAGE, MADV_HUGEPAGE); /* a kernel without them gives small ones */
    return start;
}

void mgx_give_pages(void *pages, size_t pages_bytes)
{
    if (pages)
        munmap(pages, pages_bytes);
}

void *mgx_take_block(mgx_block **blocks, size_t size)
{
    void *made = NULL;
    if (size > SIZE_MAX / 2 || posix_memalign(&made, MGX_ALIGNMENT, MGX_ALIGNMENT + size))
        return NULL;
    mgx_block *block = made;
    *block = (mgx_block){*blocks, 0};
    *blocks = block;
    return (unsigned char *)made + MGX_ALIGNMENT;
}

void mgx_give_blocks(mgx_block **blocks, int all)
{
    while (*blocks) {
        mgx_block *block = *blocks;
        if (block->kept && !all) {
            blocks = &block->next;
        } else {
            *blocks = block->next;
            free(block);
        }
    }
}

/* NAME.weights in the folder of this library; 0 if that is not known or too long. */
static int find_path(char *path, size_t room)
{
    Dl_info found;
    if (!dladdr((const void *)&mgx_this_content, &found) || !found.dli_fname)
        return 0;
    const char *slash = strrchr(found.dli_fname, '/');
    const int folder = slash ? (int)(slash - found.dli_fname) + 1 : 0;
    const int size = snprintf(path, room, "%.*s%s.weights", folder, found.dli_fname, mgx_this_library.name);
    return size > 0 && (size_t)size < room;
}

static mgx_status check_file(int file, uint64_t offset, const char *path)
{
    unsigned char head[MGX_WEIGHTS_HEAD_BYTES];
    struct stat status;
    const size_t expected = MGX_WEIGHTS_HEAD_BYTES + mgx_this_content.weights_bytes;
    if (offset % MGX_ALIGNMENT || offset > INT64_MAX)
        return mgx_fail(MGX_BAD_PARAM, "load: weights_offset is %llu, which is no place of weights",
                        (unsigned long long)offset);
    if (fstat(file, &status))
        return mgx_fail(MGX_BAD_WEIGHTS, "%s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return mgx_fail(MGX_BAD_WEIGHTS, "%s: it is no file", path);
    if (pread(file, head, sizeof head, (off_t)offset) != (ssize_t)sizeof head || memcmp(head, MGX_WEIGHTS_MAGIC, 8))
        return mgx_fail(MGX_BAD_WEIGHTS, "%s: it is no file of weights", path);
    if (memcmp(head + 8, mgx_this_content.digest, sizeof mgx_this_content.digest))
        return mgx_fail(MGX_BAD_WEIGHTS, "%s: it has the weights of another library", path);
    const uint64_t size = (uint64_t)status.st_size - offset; /* the head lies there */
    if (offset ? size < expected : size != expected)
        return mgx_fail(MGX_BAD_WEIGHTS, "%s: it has %llu bytes, expected %zu", path, (unsigned long long)size,
                        expected);
    return MGX_SUCCESS;
}

static mgx_status read_all(int file, uint64_t offset, unsigned char *data, const char *path)
{
    size_t done = 0;
    while (done < mgx_this_content.weights_bytes) {
        size_t piece = mgx_this_content.weights_bytes - done;
        if (piece > PIECE_BYTES)
            piece = PIECE_BYTES;
        const ssize_t count = pread(file, data + done, piece, (off_t)(offset + MGX_WEIGHTS_HEAD_BYTES + done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return mgx_fail(MGX_BAD_WEIGHTS, "%s: %s", path, count ? strerror(errno) : "it ends early");
        done += (size_t)count;
    }
    return MGX_SUCCESS;
}

static mgx_status map_file(int file, uint64_t offset, const char *path, mgx_weights *weights)
{
    const size_t within = offset % (uint64_t)sysconf(_SC_PAGESIZE); /* maps begin with a page */
    weights->pages_bytes = within + MGX_WEIGHTS_HEAD_BYTES + mgx_this_content.weights_bytes;
    weights->pages = mmap(NULL, weights->pages_bytes, PROT_READ, MAP_SHARED, file, (off_t)(offset - within));
    if (weights->pages == MAP_FAILED) {
        weights->pages = NULL;
        return mgx_fail(MGX_BAD_WEIGHTS, "%s: it cannot be mapped: %s", path, strerror(errno));
    }
    weights->data = (const unsigned char *)weights->pages + within + MGX_WEIGHTS_HEAD_BYTES;
    return MGX_SUCCESS;
}

/* Room for a copy of the weights. */
static unsigned char *take_room(mgx_weights *weights)
{
    unsigned char *room = mgx_take_pages(mgx_this_content.weights_bytes, &weights->pages, &weights->pages_bytes);
    weights->data = room;
    if (!room) {
        weights->pages = NULL;
        mgx_fail(MGX_OUT_OF_MEMORY, "no memory for %zu bytes of weights", mgx_this_content.weights_bytes);
    }
    return room;
}

static mgx_status from_file(const char *path, uint64_t offset, int copy, mgx_weights *weights)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return mgx_fail(MGX_BAD_WEIGHTS, "the weights %s cannot be opened: %s", path, strerror(errno));
    mgx_status status = check_file(file, offset, path);
    if (!status && !copy) {
        status = map_file(file, offset, path, weights);
    } else if (!status) {
        unsigned char *room = take_room(weights);
        status = room ? read_all(file, offset, room, path) : MGX_OUT_OF_MEMORY;
    }
    close(file);
    return status;
}

mgx_status mgx_load_weights(const mgx_options *options, mgx_weights *weights)
{
    char path[4096];
    *weights = (mgx_weights){mgx_this_content.weights, NULL, 0};
    if (options->weights)
        return from_file(options->weights, options->weights_offset, options->copy_weights, weights);
    if (!mgx_this_content.weights_bytes)
        return MGX_SUCCESS;
    if (!mgx_this_content.weights) {
        if (!find_path(path, sizeof path))
            return mgx_fail(MGX_BAD_WEIGHTS, "the folder of the library is not known: give the path of the weights");
        return from_file(path, 0, options->copy_weights, weights);
    }
    if (!options->copy_weights)
        return MGX_SUCCESS;
    unsigned char *room = take_room(weights);
    if (!room)
        return MGX_OUT_OF_MEMORY;
    memcpy(room, mgx_this_content.weights, mgx_this_content.weights_bytes);
    return MGX_SUCCESS;
}
