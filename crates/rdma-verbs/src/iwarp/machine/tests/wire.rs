//! What a machine puts on the wire, byte by byte.

use super::*;

#[test]
fn no_ulpdu_is_longer_than_mpa_allows() {
    let mut end = End::new(Side::Active, false);
    let (remote, whole) = (end.remote(0), SIZE as u32);
    end.machine = Machine::new(QpNumber(5), &end.domain, CAPABILITIES, usize::MAX);
    end.establish(Side::Active, false);
    let source = [end.segment(0, whole), end.segment(0, whole)];
    end.post(1, Operation::Write { remote, immediate: None }, Payload::Segments(&source)).unwrap();
    end.post(2, PLAIN, Payload::Segments(&source)).unwrap();
    let longest = ulpdus(&end.pipe.bytes).into_iter().map(<[u8]>::len).max();
    assert!(longest.is_some_and(|longest| (60_000..=64_768).contains(&longest)), "{longest:?}");
}
