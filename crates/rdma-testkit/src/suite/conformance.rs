//! The list of the suite's tests.

/// Runs the whole suite on one rig, as a module of tests.
///
/// ```
/// rdma_testkit::conformance!(sim_iwarp, rdma_testkit::rigs::SimRig::iwarp());
/// ```
#[macro_export]
macro_rules! conformance {
    ($name:ident, $rig:expr) => {
        $crate::conformance!(@tests $name, $rig,
            connecting {
                capabilities_are_granted, depths_have_limits, addresses_are_told,
                a_local_address_can_be_chosen, private_data_arrives_exactly, private_data_has_a_limit,
                a_reject_carries_data, nobody_listening_is_refused, an_unanswered_request_times_out,
                a_dropped_request_fails, an_address_is_taken_once, one_listener_takes_many,
                a_queue_pair_connects_once
            }
            messages {
                sends_of_many_sizes_arrive, segments_are_gathered, order_is_kept, invalidated_keys_are_told,
                sends_carry_immediate_data, too_long_a_message_breaks
            }
            one_sided {
                writes_land_where_they_should, silent_writes_are_done_with_what_follows,
                writes_carry_immediate_data, reads_fetch_what_is_there, violations_break_one_connection_only,
                remote_keys_die_with_their_region, nothing_outside_the_region_is_touched
            }
            queues {
                sends_are_posted_all_or_none, receives_are_posted_all_or_none,
                only_signalled_successes_are_reported, inline_payload_has_a_limit_and_is_taken_at_once,
                local_segments_are_checked, unknown_queue_pairs_are_refused,
                nothing_is_sent_before_a_connection, queue_pairs_share_a_completion_queue,
                held_back_sends_go_out, completions_come_in_small_portions
            }
            ending {
                an_orderly_end_loses_nothing, what_arrives_after_disconnecting_is_received,
                receives_are_flushed, nothing_is_posted_after_disconnecting, an_abort_breaks_both_sides,
                a_destroyed_queue_pair_is_silent, a_dropped_queue_breaks_its_connections,
                everything_is_flushed_in_the_end
            }
            waiting {
                the_wait_set_follows_the_completions, what_other_calls_find_is_announced,
                event_targets_report_their_token, idle_sets_are_quiet
            }
            streaming { two_threads_stream }
        );
    };
    (@tests $name:ident, $rig:expr, $($group:ident { $($test:ident),* })*) => {
        mod $name {
            use super::*;

            $($(
                #[test]
                fn $test() {
                    $crate::suite::$group::$test(&$rig);
                }
            )*)*
        }
    };
}
