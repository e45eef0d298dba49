//! Statistics of a connection, as the application reads them with `fi_open_ops` and as the log has them when
//! the endpoint is closed.

use std::fmt;

use rstream_session::Statistics;

use crate::abi::Stats;

/// The statistics of a stream as the application reads them.
pub(super) fn of(Statistics { sends, receives, traffic, refused }: Statistics) -> Stats {
    Stats {
        bytes_sent: sends.bytes,
        bytes_received: receives.bytes,
        send_calls: sends.number,
        receive_calls: receives.number,
        send_waits: sends.waits,
        receive_waits: receives.waits,
        messages_sent: traffic.data_sent,
        messages_received: traffic.data_received,
        updates_sent: traffic.updates_sent,
        updates_received: traffic.updates_received,
        refused,
        ..Stats::default()
    }
}

/// The statistics as a line of the log.
pub(super) struct Line(pub(super) Stats);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats {
            bytes_sent,
            bytes_received,
            send_calls,
            receive_calls,
            send_waits,
            receive_waits,
            messages_sent,
            messages_received,
            updates_sent,
            updates_received,
            refused,
            stalls,
            truncated,
            reads,
            bytes_read,
            writes,
            bytes_written,
        } = self.0;
        write!(
            f,
            "sent {bytes_sent} bytes ({send_calls} calls, {send_waits} waits, {messages_sent} messages, \
             {updates_sent} updates), received {bytes_received} bytes ({receive_calls} calls, \
             {receive_waits} waits, {messages_received} messages, {updates_received} updates), \
             refused {refused}, read {bytes_read} bytes ({reads} times), written {bytes_written} bytes \
             ({writes} times), {stalls} stalls, {truncated} truncated"
        )
    }
}
