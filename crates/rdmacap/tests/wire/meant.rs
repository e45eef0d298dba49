//! Operations as they are meant by a test, and whether a session has reported them.

use rdmacap::{Kind, Operation};

use super::{Dice, Seen, payload};

/// An operation as it was meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meant {
    pub(crate) id: u32,
    pub(crate) from: usize,
    pub(crate) kind: Kind,
    pub(crate) key: u32,
    pub(crate) address: u64,
    /// What it carries; of an atomic operation what it found.
    pub(crate) bytes: Vec<u8>,
    pub(crate) immediate: Option<u64>,
    pub(crate) invalidate: Option<u32>,
    /// Of an atomic operation.
    pub(crate) operand: u64,
    pub(crate) compare: u64,
}

impl Meant {
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.kind, Kind::CompareSwap | Kind::FetchAdd)
    }

    /// Whether it names memory of the other side.
    pub(crate) fn has_memory(&self) -> bool {
        !matches!(self.kind, Kind::Send | Kind::Immediate) && !self.bytes.is_empty()
    }

    /// One that carries this, and has nothing special.
    pub(crate) fn plain(id: u32, from: usize, kind: Kind, bytes: Vec<u8>) -> Self {
        Self {
            id,
            from,
            kind,
            key: 0x100 + id % 3,
            address: 0x7f00_0000_0000 + u64::from(id) * 0x10_0000,
            bytes,
            immediate: None,
            invalidate: None,
            operand: 0,
            compare: 0,
        }
    }
}

/// One of these kinds, of at most so many bytes, which say whose they are. Those of sends that invalidate
/// have no immediate.
pub(crate) fn random(dice: &mut Dice, id: u32, kinds: &[Kind], length: usize) -> Meant {
    let kind = kinds[dice.below(kinds.len() as u64) as usize];
    let mut meant = Meant::plain(id, dice.below(2) as usize, kind, payload(id, length));
    match kind {
        Kind::CompareSwap | Kind::FetchAdd => {
            meant.bytes = dice.next().to_be_bytes().to_vec();
            meant.operand = dice.next();
            meant.compare = if kind == Kind::CompareSwap { dice.next() } else { 0 };
        }
        Kind::Immediate => {
            meant.bytes = Vec::new();
            meant.immediate = Some(id.into());
        }
        Kind::Send => meant.invalidate = dice.once_in(3).then_some(0xdead_0000 | id),
        Kind::Write => meant.immediate = dice.once_in(3).then_some(u64::from(0x4000_0000 | id)),
        Kind::Read => {}
    }
    meant
}

/// What of an operation was meant has been reported, in full.
pub(crate) fn check(seen: &Seen, operation: &Operation, meant: &Meant) {
    let context = format!("{operation:?}\nbut meant {meant:?}");
    assert_eq!((operation.kind, operation.from as usize), (meant.kind, meant.from), "{context}");
    assert_eq!(operation.length, meant.bytes.len() as u64, "{context}");
    assert_eq!((operation.immediate, operation.invalidate), (meant.immediate, meant.invalidate), "{context}");
    assert_eq!((&*operation.missing, operation.cut), (&[][..], 0), "{context}");
    let place = operation.target.map(|target| (target.key, target.address));
    assert_eq!(place, meant.has_memory().then_some((meant.key, meant.address)), "{context}");
    let values = operation.atomic.map(|atomic| (atomic.operand, atomic.compare));
    assert_eq!(values, meant.is_atomic().then_some((meant.operand, meant.compare)), "{context}");
    assert_eq!(seen.content(operation.id, operation.length), Some(&*meant.bytes), "{context}");
}

/// All operations of both directions, each in the order of the wire. `counts`: others are not looked at.
pub(crate) fn check_all<'m>(
    seen: &Seen,
    meants: impl Iterator<Item = &'m Meant>,
    counts: impl Fn(&Operation) -> bool,
) {
    let mut ways: [Vec<&Meant>; 2] = Default::default();
    meants.for_each(|meant| ways[meant.from].push(meant));
    for (from, meants) in ways.into_iter().enumerate() {
        let found = seen.operations.iter().filter(|operation| operation.from as usize == from);
        let found: Vec<&Operation> = found.filter(|operation| counts(operation)).collect();
        assert_eq!(found.len(), meants.len(), "{:#?}", seen.findings);
        found.iter().zip(meants).for_each(|(operation, meant)| check(seen, operation, meant));
    }
}
