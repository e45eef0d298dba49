/* Lists the devices of this machine, by the names that the other examples take. */
#include "try.h"

int main(void)
{
    char name[64];

    for (size_t i = 0; rdma_easy_device_name(i, name, sizeof name) == 0; i++)
        printf("%s\n", name);
    return 0;
}
