/* Start-up and the board's functions for Cortex-M processors under an emulator.
 *
 * RAM from its first byte: the stack (which grows down, so that an overflow leaves RAM and faults),
 * variables, the arena. The card is a file of the machine that emulates, through semihosting.
 */
#include "board.h"
#include "clock.h"

extern uint32_t ram_begin, stack_top, data_begin, data_end, data_from, bss_begin, bss_end;
int main(void);
void limit_ram(void);

enum { PAINT = 0x5aa5c33c };

/* ---- semihosting: a request to the machine that emulates ---- */
enum { SYS_OPEN = 1, SYS_WRITE0 = 4, SYS_WRITE = 5, SYS_READ = 6, SYS_SEEK = 10, SYS_EXIT = 0x20 };

static int32_t request(uint32_t what, const void *with)
{
    register uint32_t r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = with;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return (int32_t)r0;
}

void board_log(const char *text)
{
    request(SYS_WRITE0, text);
}

void board_exit(int code)
{
    uint32_t block[2] = {0x20026, (uint32_t)code};
    request(SYS_EXIT, block);
    for (;;) {
    }
}

static int32_t card(void)
{
    static int32_t handle = -1;
    if (handle < 0) {
        static const char name[] = "card.img";
        uint32_t block[3] = {(uint32_t)(uintptr_t)name, 3 /* r+b */, sizeof name - 1};
        handle = request(SYS_OPEN, block);
        if (handle < 0) {
            board_log("error: there is no card.img\n");
            board_exit(1);
        }
    }
    return handle;
}

static int seek(uint32_t offset)
{
    uint32_t block[2] = {(uint32_t)card(), offset};
    return request(SYS_SEEK, block) != 0;
}

/* The emulator itself writes what is read, past the end of RAM, too. So the library reads a sector
 * into its own buffer, and the processor copies, whose stores meet the true limit. */
static int move(uint32_t what, uint32_t offset, const void *bytes, uint32_t count)
{
    uint32_t block[3] = {(uint32_t)card(), (uint32_t)(uintptr_t)bytes, count};
    return seek(offset) || request(what, block) != 0;
}

int board_read(uint32_t offset, void *to, uint32_t count)
{
    return move(SYS_READ, offset, to, count);
}

int board_write(uint32_t offset, const void *from, uint32_t count)
{
    return move(SYS_WRITE, offset, from, count);
}

/* ---- instructions: the emulator runs one in a nanosecond, and SysTick counts clock cycles ---- */
#define SYSTICK ((volatile uint32_t *)0xe000e010u)
enum { RELOAD = 0x00ffffff };
static volatile uint32_t turns;

void on_systick(void);
void on_systick(void)
{
    turns = turns + 1;
}

uint64_t board_instructions(void)
{
    uint32_t before, now, after;
    do {
        before = turns;
        now = RELOAD - SYSTICK[2];
        after = turns;
    } while (before != after);
    return ((uint64_t)before * (RELOAD + 1u) + now) * 1000u / CLOCK_MHZ;
}

uint32_t board_stack_used(void)
{
    const uint32_t *at = &ram_begin;
    while (at < &stack_top && *at == PAINT)
        at++;
    return (uint32_t)((const uint8_t *)&stack_top - (const uint8_t *)at);
}

/* ---- start and faults ---- */
void on_fault(void);
void on_fault(void)
{
    board_log("error: fault: an access outside of RAM, or a broken instruction\n");
    board_exit(3);
}

void on_reset(void);
void on_reset(void)
{
    limit_ram();
    register uint32_t *stack_now __asm__("sp");
    for (uint32_t *at = &ram_begin; at < stack_now - 8; at++)
        *at = PAINT;
    const uint32_t *from = &data_from;
    for (uint32_t *to = &data_begin; to < &data_end; to++)
        *to = *from++;
    for (uint32_t *to = &bss_begin; to < &bss_end; to++)
        *to = 0;
#if defined(__ARM_FP)
    *(volatile uint32_t *)0xe000ed88u |= 0xf00000u; /* the floating-point unit on */
    __asm__ volatile("dsb\nisb");
#endif
    SYSTICK[1] = RELOAD;
    SYSTICK[2] = 0;
    SYSTICK[0] = 7; /* on, with an interrupt, at the processor's clock */
    board_exit(main());
}

struct vectors {
    const void *stack;
    void (*handlers[15])(void);
};

__attribute__((section(".vectors"), used)) static const struct vectors vectors = {
    &stack_top,
    {on_reset, on_fault, on_fault, on_fault, on_fault, on_fault, 0, 0, 0, 0, on_fault, on_fault, 0,
     on_fault, on_systick},
};
