/* The board's functions under an emulator: the card is a file of the machine that emulates, through
 * semihosting. */
#include "board.h"
#include "clock.h"

void limit_ram(void);

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

void board_begin(void)
{
    limit_ram();
    SYSTICK[1] = RELOAD;
    SYSTICK[2] = 0;
    SYSTICK[0] = 7; /* on, with an interrupt, at the processor's clock */
}
