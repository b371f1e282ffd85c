// Of Arduino's core and its library SD what the example names: enough to compile it, no more.
#include <stdint.h>

struct Console {
  void begin(unsigned long baud);
  void print(const char *text);
  void print(unsigned long number);
  void println(const char *text);
  void println(double number, int digits);
};
extern Console Serial;

struct File {
  bool seek(uint32_t at);
  int read(void *to, uint16_t count);
  unsigned write(const uint8_t *from, unsigned count);
  void flush();
  void close();
  operator bool();
};

struct Card {
  bool begin(int chip_select);
  File open(const char *name, uint8_t mode);
};
extern Card SD;

enum { O_RDWR = 2 };
