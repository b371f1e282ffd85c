/* What a compiler may call by itself, even where there is no library. */
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);

void *memcpy(void *to, const void *from, size_t count)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    while (count-- > 0)
        *out++ = *in++;
    return to;
}

void *memset(void *to, int value, size_t count)
{
    uint8_t *out = to;
    while (count-- > 0)
        *out++ = (uint8_t)value;
    return to;
}
