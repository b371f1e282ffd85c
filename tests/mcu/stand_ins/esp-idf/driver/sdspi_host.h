typedef int sdspi_dev_handle_t;
typedef struct {
    int host_id, gpio_cs;
} sdspi_device_config_t;
#define SDSPI_HOST_DEFAULT() {.slot = 1}
#define SDSPI_DEVICE_CONFIG_DEFAULT() {.host_id = 1}
int sdspi_host_init(void);
int sdspi_host_init_device(const sdspi_device_config_t *slot, sdspi_dev_handle_t *device);
