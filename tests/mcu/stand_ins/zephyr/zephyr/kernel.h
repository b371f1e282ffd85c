/* With disk_access.h. */
