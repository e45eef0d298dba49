//! A stream against a base peer that was written from the protocol document alone: it keeps two
//! credits, returns everything in one word at half its numbers, and knows no ending.

use super::super::{Features, Setup, Stream, WordFormat};
use super::{control_arrival, data_arrival};

/// The base protocol in its plainest form. Counts only; sizes stay below a word's fields.
struct BasePeer {
    ring: u32,
    receives: u32,
    credits: u32,
    window: u32,
    /// Where its next write goes in our ring, and that ring's size.
    index: u32,
    our_ring: u32,
    unread: u32,
    freed: u32,
    completed: u32,
}

impl BasePeer {
    fn new(setup: &Setup) -> Self {
        Self {
            ring: setup.peer_ring,
            receives: setup.peer_receives.into(),
            credits: setup.local_receives.into(),
            window: setup.local_ring,
            index: 0,
            our_ring: setup.local_ring,
            unread: 0,
            freed: 0,
            completed: 0,
        }
    }

    /// Its application writes; answers the length of one data message, 0 if it is blocked.
    fn write(&mut self, wanted: u32) -> u32 {
        if self.credits <= 2 {
            return 0;
        }
        let length = wanted.min(self.window).min(self.our_ring - self.index).min(0xf_ffff);
        if length > 0 {
            self.credits -= 1;
            self.window -= length;
            self.index = (self.index + length) % self.our_ring;
        }
        length
    }

    /// Its application reads all; afterwards, or whenever it looks, it may owe an update.
    fn update(&mut self) -> Option<u32> {
        self.freed += core::mem::take(&mut self.unread);
        let due = self.completed >= self.receives / 2 || self.freed >= self.ring / 2;
        if !due || (self.completed == 0 && self.freed == 0) || self.credits == 0 {
            return None;
        }
        self.credits -= 1;
        Some(core::mem::take(&mut self.freed) | core::mem::take(&mut self.completed) << 20)
    }

    fn on_data(&mut self, length: u32) {
        self.completed += 1;
        self.unread += length;
        assert!(self.completed <= self.receives && self.unread + self.freed <= self.ring);
    }

    fn on_control(&mut self, word: u32) {
        assert!(word != 0 && word >> 29 == 0, "word {word:#x} is not of the base protocol");
        self.completed += 1;
        assert!(self.completed <= self.receives);
        self.window += word & 0xf_ffff;
        self.credits += word >> 20;
        assert!(self.window <= self.our_ring);
    }
}

/// Both applications send by turns, from rest each time: `ours` and `theirs` bytes a turn.
fn converse(setup: Setup, ours: usize, theirs: u32) {
    let mut stream = Stream::new(setup).expect("sizes that work");
    let mut peer = BasePeer::new(&setup);
    for turn in 0..40 {
        let mut sent = 0;
        while let Some(message) = stream.next_write(ours - sent) {
            sent += message.length as usize;
            stream.on_sent(message.ticket.id);
            peer.on_data(message.length);
        }
        assert!(sent > 0, "we are stuck in turn {turn} of {setup:?}");
        rest(&mut stream, &mut peer, setup.words);
        let length = peer.write(theirs);
        assert!(length > 0, "the base peer is stuck in turn {turn} of {setup:?}");
        let message = super::WriteMessage {
            remote_offset: 0,
            local_offset: 0,
            length,
            word: setup.words.data_word(length),
            may_join_word: false,
            ticket: super::super::Ticket { id: 0, signaled: false },
        };
        stream.on_arrival(data_arrival(setup.words, message)).expect("allowed");
        rest(&mut stream, &mut peer, setup.words);
    }
}

/// Both applications read everything, and updates go back and forth until there are none.
fn rest(stream: &mut Stream, peer: &mut BasePeer, words: WordFormat) {
    for _ in 0..100 {
        let mut quiet = true;
        stream.consume(usize::MAX);
        while let Some(message) = stream.next_control() {
            quiet = false;
            stream.on_sent(message.ticket.id);
            peer.on_control(message.word);
        }
        while let Some(word) = peer.update() {
            quiet = false;
            let ticket = super::super::Ticket { id: 0, signaled: false };
            let message = super::ControlMessage { word, ticket };
            stream.on_arrival(control_arrival(words, message)).expect("allowed");
        }
        if quiet {
            return;
        }
    }
    panic!("updates go on for ever");
}

#[test]
fn a_stream_gets_along_with_a_base_peer() {
    for words in [WordFormat::Immediate, WordFormat::Iwarp] {
        for (local_receives, peer_receives) in
            [(3, 4), (4, 3), (3, 5), (4, 4), (5, 5), (6, 4), (7, 3), (16, 16), (384, 384), (1000, 500)]
        {
            for (local_ring, peer_ring) in [(1, 2), (10, 10), (100, 7), (32_768, 32_768), (1 << 20, 4096)] {
                let setup = Setup {
                    local_ring,
                    local_receives,
                    peer_ring,
                    peer_receives,
                    send_ring: 4096,
                    send_depth: 8,
                    max_message: 1 << 20,
                    words,
                    features: Features::empty(),
                };
                for amount in [1, 13, u32::MAX] {
                    converse(setup, amount as usize, amount);
                }
            }
        }
    }
}
