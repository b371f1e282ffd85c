/* What kernels find wrong with a batch. They know of no `struct poet` and go on, with another index
 * or as if the check had held; it is remembered here, and the op fails when it ends. */
#include "kernels.h"
#include "step.h"

static struct {
    int64_t index;
    int32_t extent;
} bad;

static struct {
    uint32_t op;
    int is_known;
} failed;

void poet_no_such_index(int64_t index, int32_t extent)
{
    if (bad.extent == 0) {
        bad.index = index;
        bad.extent = extent;
    }
}

void poet_check_failed(uint32_t op)
{
    if (!failed.is_known) {
        failed.op = op;
        failed.is_known = 1;
    }
}

enum poet_error poet_failure(void)
{
    if (bad.extent != 0)
        return POET_ERROR_INDEX;
    return failed.is_known ? POET_ERROR_CHECK : POET_OK;
}

void poet_forget_failures(void)
{
    bad.extent = 0;
    failed.is_known = 0;
}

enum poet_error poet_bad_index(const struct poet *ctx, int64_t *index, int32_t *extent)
{
    if (ctx == NULL || index == NULL || extent == NULL)
        return POET_ERROR_ARGUMENT;
    *index = bad.index;
    *extent = bad.extent;
    return POET_OK;
}

enum poet_error poet_failed_check(const struct poet *ctx, uint32_t *op)
{
    if (ctx == NULL || op == NULL)
        return POET_ERROR_ARGUMENT;
    *op = failed.is_known ? failed.op : UINT32_MAX;
    return POET_OK;
}
