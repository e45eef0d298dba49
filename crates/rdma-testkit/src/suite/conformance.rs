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
                capabilities_are_granted, depths_have_limits, addresses_are_reported,
                a_local_address_can_be_chosen, private_data_arrives_exactly, private_data_has_a_limit,
                a_reject_carries_data, connecting_without_a_listener_is_refused, an_unanswered_request_times_out,
                a_dropped_request_fails, an_address_is_bound_once, one_listener_accepts_many,
                a_queue_pair_connects_once
            }
            messages {
                sends_of_many_sizes_arrive, segments_are_gathered, order_is_kept, invalidated_keys_are_reported,
                sends_carry_immediate_data, a_message_too_long_breaks_the_connection
            }
            message_queues {
                messages_go_from_places_to_places, messages_wait_for_their_receives,
                a_message_too_long_is_cut_or_breaks_the_connection, writes_with_immediate_data_are_reported,
                held_writes_wait, accesses_of_the_peer_are_counted, reads_fill_places,
                receives_are_cancelled, connections_share_receives,
                shared_receives_outlive_their_connections, nothing_is_received_after_disconnecting,
                reads_under_way_when_this_side_disconnects_are_flushed,
                requests_have_a_number_of_places
            }
            shared_receives {
                queue_pairs_share_receives, numbers_of_writes_consume_shared_receives,
                a_message_without_a_shared_receive_concerns_its_connection_only,
                shared_receives_are_not_flushed, shared_receives_are_used_after_disconnecting
            }
            one_sided {
                writes_are_placed_at_their_addresses, unsignaled_writes_complete_with_later_requests,
                writes_carry_immediate_data, reads_fetch_the_peers_memory, violations_break_one_connection_only,
                remote_keys_end_with_their_region, fenced_requests_have_what_reads_fetch, memory_of_every_kind_can_be_registered, nothing_outside_the_region_is_touched
            }
            queues {
                sends_are_posted_all_or_none, receives_are_posted_all_or_none,
                only_signaled_successes_are_reported, inline_payload_has_a_limit_and_is_copied_at_once,
                local_segments_are_checked, unknown_queue_pairs_are_refused,
                nothing_is_sent_before_a_connection, queue_pairs_share_a_completion_queue,
                any_depth_has_room_for_many_queue_pairs,
                held_back_requests_are_sent, completions_are_polled_in_small_batches
            }
            ending {
                an_orderly_end_loses_nothing, messages_after_disconnecting_are_received,
                receives_are_flushed, what_is_posted_after_an_unread_end_is_flushed,
                nothing_is_posted_after_disconnecting, an_abort_breaks_both_sides,
                a_destroyed_queue_pair_reports_nothing, a_dropped_queue_breaks_its_connections,
                everything_is_flushed_in_the_end
            }
            waiting {
                the_wait_set_is_readable_while_there_are_completions, completions_found_by_other_calls_are_signaled,
                event_targets_report_their_token, idle_wait_sets_are_not_readable, an_idle_device_has_no_events
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
