/* rstream_sockets.h in C++: its functions link by their C names. */
#include "rstream_sockets.h"

int (*const attach)(int) = rs_attach;
