/* Tests that fail with the library, and why. They are run by name, or with -k. */
static const struct {
    const char *name, *reason;
} known[] = {
    {"a_change_is_an_edge", "an edge is reported once more than by the kernel"},
    {"an_exclusive_member", "an edge is reported once more than by the kernel"},
    {"edge_reports_once", "an edge is reported once more than by the kernel"},
    {"a_killed_process_without_unread_bytes", "bells that it had not taken have poll say POLLHUP too"},
    {"a_reset_is_reported", "a reset is reported with EPOLLOUT as well"},
    {"a_reset_ends_a_send", "a blocked call may go to TCP just before the reset comes"},
    {"a_signal_restarts_a_send.splice", "splice is not restarted after a signal"},
    {"memory_that_cannot_be_read", "memory that is not there ends the program, where the kernel says EFAULT"},
    {"memory_that_cannot_be_read_further_on", "as above"},
    {"memory_that_cannot_be_written", "as above"},
    {"pieces_of_which_the_second_cannot_be_read", "as above"},
    {"own_shutdown_ends_a_send", "shutdown by another thread does not wake a sender that sleeps in a call of the kernel"},
};
