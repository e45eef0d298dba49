//! What send and receive answer in each state of a connection: the table of the endpoint's
//! contract, one test a row, in both word formats and with a base peer where that differs.

use super::super::words::{CLOSE_BIT, END_BIT};
use super::super::{Features, RecvState, SendEnd, Setup, WordFormat};
use super::{Link, setup};

/// We are side 0.
const US: usize = 0;
const PEER: usize = 1;

/// Runs a row between peers with the extension.
fn extended(row: impl Fn(Link)) {
    for words in [WordFormat::Immediate, WordFormat::Iwarp] {
        row(Link::new(setup(words)));
    }
}

/// Runs a row with a base peer.
fn base(row: impl Fn(Link)) {
    for words in [WordFormat::Immediate, WordFormat::Iwarp] {
        row(Link::new(Setup { features: Features::empty(), ..setup(words) }));
    }
}

impl Link {
    /// The peer's bytes arrive, and then something happens.
    fn with_unread(mut self) -> Self {
        assert_eq!(self.write(PEER, 10), 10);
        self
    }

    /// Our receive gives the 10 bytes, and then answers `end`, for ever.
    fn assert_rest_then(&mut self, end: RecvState) {
        assert_eq!(self.read(US, 6), 6);
        assert_eq!(self.read(US, 6), 4);
        for _ in 0..2 {
            assert_eq!(self.read(US, 6), 0);
            assert_eq!(self.sides[US].receive_end(), end);
        }
    }

    fn assert_send(&mut self, end: SendEnd) {
        assert_eq!(self.sides[US].sendable(), Err(end));
        assert_eq!(self.sides[US].next_write(1), None);
    }

    fn assert_send_works(&mut self) {
        assert!(self.sides[US].sendable().is_ok_and(|room| room > 0));
        assert_eq!(self.write(US, 7), 7);
    }

    fn assert_receive_works(&mut self) {
        assert_eq!(self.sides[US].receive_end(), RecvState::Open);
        assert_eq!(self.write(PEER, 3), 3);
        assert_eq!(self.read(US, 100), 3);
    }

    fn assert_over(&self, over: bool) {
        assert_eq!(self.sides[US].is_over(), over);
        assert!(self.sides[US].outgoing_done());
    }
}

#[test]
fn connected() {
    let row = |mut link: Link| {
        link.assert_send_works();
        link.assert_receive_works();
        assert!(link.write(US, usize::MAX) > 0);
        assert_eq!(link.sides[US].sendable(), Ok(0), "would block");
        link.assert_over(false);
    };
    extended(row);
    base(row);
}

#[test]
fn we_shut_our_sending_side() {
    extended(|mut link| {
        link.sides[US].shut_send();
        assert!(!link.sides[US].outgoing_done());
        link.exchange();
        assert_eq!(link.controls[US], [END_BIT]);
        link.assert_send(SendEnd::Shut);
        link.assert_receive_works();
        link.assert_over(false);
        link.sides[US].shut_send();
        link.exchange();
        assert_eq!(link.controls[US], [END_BIT], "said once");
    });
    base(|mut link| {
        link.sides[US].shut_send();
        link.exchange();
        assert_eq!(link.controls[US], [], "a base peer is not told");
        link.assert_send(SendEnd::Shut);
        link.assert_receive_works();
        link.assert_over(false);
    });
}

#[test]
fn peer_shut_its_sending_side() {
    extended(|link| {
        let mut link = link.with_unread();
        link.sides[PEER].shut_send();
        link.exchange();
        link.assert_rest_then(RecvState::Ended);
        link.assert_send_works();
        link.assert_over(false);
    });
}

#[test]
fn both_shut_their_sending_sides() {
    extended(|link| {
        let mut link = link.with_unread();
        link.sides[PEER].shut_send();
        link.exchange();
        link.sides[US].shut_send();
        assert!(link.sides[US].is_over() && !link.sides[US].outgoing_done());
        link.exchange();
        link.assert_over(true);
        assert!(link.sides[PEER].is_over());
        link.assert_send(SendEnd::Shut);
        // Nothing that could still be said matters.
        link.sides[US].close();
        link.sides[PEER].close();
        assert!(link.sides[US].outgoing_done() && link.sides[PEER].outgoing_done());
        link.exchange();
        assert_eq!(
            (&link.controls[US][..], &link.controls[PEER][..]),
            (&[END_BIT | 2 << 20][..], &[END_BIT][..])
        );
        link.sides[US].on_disconnected();
        link.assert_rest_then(RecvState::Ended);
        link.assert_send(SendEnd::Shut);
    });
}

#[test]
fn peer_shut_both_sides() {
    extended(|link| {
        let mut link = link.with_unread();
        link.sides[PEER].close();
        link.exchange();
        assert_eq!(link.controls[PEER], [CLOSE_BIT]);
        link.assert_over(true);
        link.assert_send(SendEnd::Shut);
        link.sides[US].on_disconnected();
        link.assert_send(SendEnd::Shut);
        link.assert_rest_then(RecvState::Ended);
        link.sides[US].on_broken();
        link.assert_send(SendEnd::Shut);
    });
}

#[test]
fn we_shut_both_sides() {
    extended(|link| {
        let mut link = link.with_unread();
        link.sides[US].close();
        assert!(link.sides[US].is_over() && !link.sides[US].outgoing_done());
        // What comes before the peer hears of it is dropped.
        let message = link.sides[PEER].next_write(5).expect("the peer does not know");
        let arrival = super::data_arrival(link.words, message);
        link.sides[US].on_arrival(arrival).expect("allowed");
        link.exchange();
        assert_eq!(link.controls[US], [CLOSE_BIT | 2 << 20]);
        link.assert_over(true);
        link.assert_send(SendEnd::Shut);
        link.assert_rest_then(RecvState::Ended);
        assert_eq!(link.controls[US].len(), 1, "nothing follows a close");
        assert_eq!(link.sides[PEER].sendable(), Err(SendEnd::Shut));
    });
}

#[test]
fn shutting_one_side_after_the_other_closes() {
    for receive_first in [true, false] {
        extended(|mut link| {
            if receive_first {
                link.sides[US].shut_recv();
                link.sides[US].shut_send();
            } else {
                link.sides[US].shut_send();
                link.sides[US].shut_recv();
            }
            assert!(link.sides[US].is_over());
            link.exchange();
            assert_eq!(link.controls[US], [END_BIT | CLOSE_BIT]);
            assert!(link.sides[PEER].is_over());
        });
    }
}

#[test]
fn end_and_then_close() {
    extended(|mut link| {
        link.sides[US].shut_send();
        link.exchange();
        link.sides[US].close();
        link.exchange();
        assert_eq!(link.controls[US], [END_BIT, CLOSE_BIT]);
        assert!(link.sides[PEER].is_over());
        assert_eq!(link.sides[PEER].sendable(), Err(SendEnd::Shut));
    });
}

#[test]
fn base_peer_closed_gracefully() {
    base(|link| {
        let mut link = link.with_unread();
        link.sides[US].on_disconnected();
        link.assert_over(true);
        link.assert_send(SendEnd::Shut);
        link.assert_rest_then(RecvState::Ended);
        link.sides[US].on_broken();
        link.assert_send(SendEnd::Shut);
    });
}

#[test]
fn we_close_before_a_base_peer() {
    base(|link| {
        let mut link = link.with_unread();
        link.sides[US].close();
        link.assert_over(true);
        link.assert_send(SendEnd::Shut);
        link.assert_rest_then(RecvState::Ended);
        for _ in 0..100 {
            link.write(PEER, 9);
        }
        assert_eq!(link.controls[US], [], "the peer is not told anything any more");
    });
}

#[test]
fn we_shut_our_receiving_side() {
    let row = |link: Link| {
        let mut link = link.with_unread();
        link.sides[US].shut_recv();
        assert_eq!(link.sides[US].readable(), 0);
        assert_eq!(link.sides[US].receive_end(), RecvState::Ended);
        for _ in 0..100 {
            assert_eq!(link.write(PEER, 100), 100, "the peer never stalls");
            assert_eq!(link.sides[US].readable(), 0);
        }
        link.assert_send_works();
        link.assert_over(false);
    };
    extended(row);
    base(row);
}

#[test]
fn peer_shut_its_sending_side_and_died() {
    for orderly in [true, false] {
        extended(|link| {
            let mut link = link.with_unread();
            link.sides[PEER].shut_send();
            link.exchange();
            if orderly {
                link.sides[US].on_disconnected()
            } else {
                link.sides[US].on_broken()
            }
            link.assert_over(true);
            link.assert_send(SendEnd::Reset);
            link.assert_rest_then(RecvState::Ended);
        });
    }
}

#[test]
fn peer_died() {
    let row = |link: Link| {
        let mut link = link.with_unread();
        link.sides[US].on_broken();
        link.assert_over(true);
        link.assert_send(SendEnd::Reset);
        link.assert_rest_then(RecvState::Reset);
    };
    extended(row);
    base(row);
}

#[test]
fn peer_was_killed_and_its_kernel_closed_in_order() {
    extended(|link| {
        let mut link = link.with_unread();
        link.sides[US].on_disconnected();
        link.assert_over(true);
        link.assert_send(SendEnd::Reset);
        link.assert_rest_then(RecvState::Reset);
    });
}

#[test]
fn peer_broke_the_protocol() {
    let row = |link: Link| {
        let mut link = link.with_unread();
        let bad = super::control_arrival(
            link.words,
            super::ControlMessage { word: 1, ticket: super::super::Ticket { id: 0, signaled: false } },
        );
        link.sides[US].on_arrival(bad).expect_err("nothing is outstanding");
        link.assert_over(true);
        link.assert_send(SendEnd::Reset);
        assert_eq!(link.sides[US].on_arrival(bad), Ok(()), "told once");
        assert_eq!(link.sides[US].next_control(), None);
        link.assert_rest_then(RecvState::Reset);
    };
    extended(row);
    base(row);
}

#[test]
fn what_we_shut_stays_shut_when_the_peer_dies() {
    extended(|mut link| {
        link.sides[US].shut_send();
        link.exchange();
        link.sides[US].on_broken();
        link.assert_send(SendEnd::Shut);
        assert_eq!(link.sides[US].receive_end(), RecvState::Reset);
    });
    extended(|mut link| {
        link.sides[US].shut_recv();
        link.sides[US].on_broken();
        link.assert_send(SendEnd::Reset);
        assert_eq!(link.sides[US].receive_end(), RecvState::Ended);
    });
}

#[test]
fn an_end_that_is_reported_after_the_disconnect_counts() {
    extended(|link| {
        let mut link = link.with_unread();
        link.sides[PEER].shut_send();
        let end = link.sides[PEER].next_control().expect("end of stream");
        link.sides[US].on_disconnected();
        assert_eq!(link.sides[US].receive_end(), RecvState::Reset);
        link.sides[US].on_arrival(super::control_arrival(link.words, end)).expect("allowed");
        link.assert_rest_then(RecvState::Ended);
    });
}

#[test]
fn room_is_not_returned_to_a_peer_that_ended() {
    extended(|mut link| {
        assert_eq!(link.write(PEER, 4000), 4000);
        link.sides[PEER].shut_send();
        link.exchange();
        assert_eq!(link.read(US, 4000), 4000);
        assert_eq!(link.controls[US], []);
    });
}
