//! Tests of the protocol: tables for each part, and two streams joined in memory.

mod base_peer;
mod credits;
mod document;
mod joined;
mod large;
mod offers;
mod rings;
mod short_data;
mod states;
mod violations;
mod words;

use super::{Arrival, ControlMessage, Features, Setup, Stream, WordFormat, WriteMessage};

/// Sizes that are in nobody's way, the same on both sides, with all features.
fn setup(words: WordFormat) -> Setup {
    Setup {
        local_ring: 4096,
        local_receives: 16,
        peer_ring: 4096,
        peer_receives: 16,
        send_ring: 4096,
        send_depth: 16,
        max_message: 1 << 20,
        words,
        features: Features::END_OF_STREAM,
    }
}

/// What a control message is to the side that receives it.
fn control_arrival(words: WordFormat, message: ControlMessage) -> Arrival {
    match words {
        WordFormat::Immediate => Arrival::Control { immediate: message.word },
        WordFormat::Iwarp => Arrival::Word(message.word),
    }
}

/// What a data message is to the side that receives it.
fn data_arrival(words: WordFormat, message: WriteMessage) -> Arrival {
    match words {
        WordFormat::Immediate => Arrival::Write { immediate: message.word, length: message.length },
        WordFormat::Iwarp => Arrival::Word(message.word),
    }
}

/// Two streams on a link without delay, where every request completes at once. Bytes have no values.
struct Link {
    words: WordFormat,
    sides: [Stream; 2],
    /// Control words sent by each side so far.
    controls: [Vec<u32>; 2],
}

impl Link {
    fn new(setup: Setup) -> Self {
        let mirrored = Setup {
            local_ring: setup.peer_ring,
            local_receives: setup.peer_receives,
            peer_ring: setup.local_ring,
            peer_receives: setup.local_receives,
            ..setup
        };
        let sides = [setup, mirrored].map(|setup| Stream::new(setup).expect("sizes that work"));
        Self { words: setup.words, sides, controls: [vec![], vec![]] }
    }

    /// Writes up to `wanted` bytes and delivers them; answers how many.
    fn write(&mut self, side: usize, wanted: usize) -> usize {
        let mut sent = 0;
        while let Some(message) = self.sides[side].next_write(wanted - sent) {
            sent += message.length as usize;
            self.sides[side].on_sent(message.ticket.id);
            self.sides[1 - side].on_arrival(data_arrival(self.words, message)).expect("follows the rules");
        }
        self.exchange();
        sent
    }

    /// Reads up to `wanted` bytes; answers how many.
    fn read(&mut self, side: usize, wanted: usize) -> usize {
        let count = wanted.min(self.sides[side].readable());
        self.sides[side].consume(count);
        self.exchange();
        count
    }

    /// Control messages go back and forth until there are none.
    fn exchange(&mut self) {
        let mut side = 0;
        for _ in 0..100 {
            let mut quiet = true;
            for _ in 0..2 {
                while let Some(message) = self.sides[side].next_control() {
                    quiet = false;
                    self.controls[side].push(message.word);
                    self.sides[side].on_sent(message.ticket.id);
                    let arrival = control_arrival(self.words, message);
                    self.sides[1 - side].on_arrival(arrival).expect("follows the rules");
                }
                side = 1 - side;
            }
            if quiet {
                return;
            }
        }
        panic!("the exchange does not end");
    }
}
