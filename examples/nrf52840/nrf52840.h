/* Registers and pins. Registers are those of the nRF52840 Product Specification (GPIO, SPIM, UARTE),
 * pins those of the development kit: the card where its Arduino header has SPI, the console where its
 * USB port is. */
#ifndef NRF52840_H
#define NRF52840_H

#include <stdint.h>

#define AT(address) (*(volatile uint32_t *)(address))

/* A pin as peripherals name it: port times 32, and the number. */
enum { CARD_CLOCK = 32 + 15, CARD_IN = 32 + 14, CARD_OUT = 32 + 13, CARD_SELECT = 32 + 12 };
enum { CONSOLE_OUT = 6 };

#define PORT(pin) (0x50000000u + 0x300u * ((uint32_t)(pin) / 32u))
#define BIT(pin) (1u << ((uint32_t)(pin) % 32u))
#define PIN_SET(pin) AT(PORT(pin) + 0x508u)
#define PIN_CLEAR(pin) AT(PORT(pin) + 0x50cu)
#define PIN_CONFIGURED(pin) AT(PORT(pin) + 0x700u + 4u * ((uint32_t)(pin) % 32u))
enum { OUTPUT = 0x3 | 3 << 8 /* strong both ways */, INPUT_PULLED_UP = 3 << 2 };

#endif
