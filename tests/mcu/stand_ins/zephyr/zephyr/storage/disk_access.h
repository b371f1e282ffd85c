/* Of Zephyr what the sample names: enough to compile it, no more. */
#include <stddef.h>
#include <stdint.h>

enum { DISK_IOCTL_GET_SECTOR_SIZE = 2, DISK_IOCTL_CTRL_SYNC = 5 };
int disk_access_init(const char *disk);
int disk_access_read(const char *disk, uint8_t *to, uint32_t first, uint32_t count);
int disk_access_write(const char *disk, const uint8_t *from, uint32_t first, uint32_t count);
int disk_access_ioctl(const char *disk, uint8_t command, void *with);
