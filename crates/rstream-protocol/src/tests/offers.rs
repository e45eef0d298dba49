//! Connection data, refusals and what two offers agree on.

use super::super::offer::EXTENSION_VERSION;
use super::super::refusal::{MAGIC, VERSION};
use super::super::{
    Extension, Features, Offer, OfferError, Refusal, RefusalReason, UserDataTooLong, WordFormat, negotiate,
};

const BASE: Offer<'static> = Offer {
    ring_address: 0x0102_0304_0506_0708,
    ring_key: 0x1112_1314_1516_1718,
    ring_size: 0x2122_2324,
    receives: 0x3132,
    extension: None,
};

fn extended(user_data: &[u8]) -> Offer<'_> {
    let features = Features::END_OF_STREAM | Features::IMMEDIATE;
    Offer { extension: Some(Extension { features, user_data, rendezvous: b"" }), ..BASE }
}

fn inviting(rendezvous: &[u8]) -> Offer<'_> {
    let features = Features::END_OF_STREAM | Features::SHARED_MEMORY;
    Offer { extension: Some(Extension { features, user_data: b"abc", rendezvous }), ..BASE }
}

#[test]
fn layouts() {
    let base = BASE.encode().expect("good");
    let mut expected = vec![24];
    expected.extend(0x01..=0x08);
    expected.extend(0x11..=0x18);
    expected.extend(0x21..=0x24);
    expected.extend([0x31, 0x32, 2, 0]);
    assert_eq!(base, expected);
    let extended = extended(b"abc").encode().expect("good");
    expected[0] = 33;
    expected.extend([1, 0, 0, 0, 3, 3]);
    expected.extend(b"abc");
    assert_eq!(extended, expected);
    assert_eq!(extended.len(), Offer::OVERHEAD + 3);
}

#[test]
fn every_offer_survives_the_way() {
    let long = [0xa5; Offer::USER_DATA_MAX];
    for offer in [
        BASE,
        extended(b""),
        extended(b"abc"),
        extended(&long),
        inviting(b""),
        inviting(&long[..Offer::USER_DATA_MAX - 4]),
        Offer { ring_size: 1, ring_address: u64::MAX, receives: 3, ..BASE },
        Offer { ring_size: u32::MAX, ring_address: u64::MAX - u64::from(u32::MAX) + 1, ..BASE },
    ] {
        let mut bytes = offer.encode().expect("good");
        assert!(bytes.len() <= 256);
        assert_eq!(Offer::decode(&bytes), Ok(offer));
        assert_eq!(Offer::decode(&bytes).map(|offer| offer.user_data()), Ok(offer.user_data()));
        bytes.resize(512, 0);
        assert_eq!(Offer::decode(&bytes), Ok(offer), "padding");
    }
}

#[test]
fn every_truncated_prefix_is_refused() {
    for offer in [BASE, extended(b""), extended(b"abc"), inviting(b"")] {
        let bytes = offer.encode().expect("good");
        for length in 0..bytes.len() {
            let error = OfferError::Truncated { have: length, need: bytes.len() };
            let empty = OfferError::Truncated { have: 0, need: 25 };
            let expected = if length == 0 { empty } else { error };
            assert_eq!(Offer::decode(&bytes[..length]), Err(expected));
        }
    }
}

#[test]
fn every_short_count_is_refused() {
    let bytes = extended(b"abc").encode().expect("good");
    for count in 0..33_u8 {
        let mut short = bytes.clone();
        short[0] = count;
        let have = usize::from(count) + 1;
        match count {
            // Just what a base peer sends.
            24 => assert_eq!(Offer::decode(&short), Ok(BASE)),
            _ => {
                let need = if count < 24 {
                    25
                } else if count < 30 {
                    31
                } else {
                    34
                };
                assert_eq!(Offer::decode(&short), Err(OfferError::Truncated { have, need }), "{count}");
            }
        }
    }
}

#[test]
fn offers_that_cannot_work_are_refused_with_their_numbers() {
    let rows = [
        (Offer { ring_size: 0, ..BASE }, OfferError::EmptyRing),
        (Offer { receives: 2, ..BASE }, OfferError::TooFewReceives { receives: 2, least: 3 }),
        (
            Offer { ring_address: u64::MAX, ring_size: 2, ..BASE },
            OfferError::RingWraps { address: u64::MAX, size: 2 },
        ),
    ];
    for (offer, error) in rows {
        assert_eq!(offer.encode(), Err(error), "not sent");
        let mut bytes = BASE.encode().expect("good");
        bytes[1..9].copy_from_slice(&offer.ring_address.to_be_bytes());
        bytes[17..21].copy_from_slice(&offer.ring_size.to_be_bytes());
        bytes[21..23].copy_from_slice(&offer.receives.to_be_bytes());
        assert_eq!(Offer::decode(&bytes), Err(error), "not taken");
    }
    let mut bytes = BASE.encode().expect("good");
    bytes[23] = 1;
    assert_eq!(Offer::decode(&bytes), Err(OfferError::Version { found: 1 }));
    let long = [0; Offer::USER_DATA_MAX + 1];
    let error = OfferError::UserDataTooLong { length: 226, most: 225 };
    assert_eq!(extended(&long).encode(), Err(error));
}

#[test]
fn what_is_not_known_is_ignored() {
    let mut offer = extended(b"abc");
    offer.extension = offer
        .extension
        .map(|extension| Extension { features: Features::all() - Features::SHARED_MEMORY, ..extension });
    let mut bytes = offer.encode().expect("good");
    bytes[24] = 0xff;
    let unknown = !Features::SHARED_MEMORY.bits();
    bytes[26..30].copy_from_slice(&unknown.to_be_bytes());
    assert_eq!(Offer::decode(&bytes), Ok(offer), "garbage and later features");
    bytes[0] += 5;
    bytes.extend([9; 5]);
    assert_eq!(Offer::decode(&bytes), Ok(offer), "counted bytes after the user data");
    bytes[25] = EXTENSION_VERSION + 1;
    assert_eq!(Offer::decode(&bytes), Ok(BASE), "another version of the extension");
}

#[test]
fn both_sides_agree_on_words_and_features() {
    use WordFormat::{Immediate, Iwarp};
    const END: Features = Features::END_OF_STREAM;
    const IMM: Features = Features::IMMEDIATE;
    const NONE: Features = Features::empty();
    // Ours, the peer's (None: base), transport, forced, agreed words, agreed features.
    for (local, peer, transport, forced, words, agreed) in [
        (END | IMM, Some(END | IMM), Iwarp, false, Immediate, END | IMM),
        (END | IMM, Some(END), Iwarp, false, Iwarp, END),
        (END, Some(END | IMM), Iwarp, false, Iwarp, END),
        (END | IMM, None, Iwarp, false, Iwarp, NONE),
        (END, None, Iwarp, true, Iwarp, NONE),
        (END | IMM, Some(END | IMM), Immediate, false, Immediate, END | IMM),
        (END | IMM, Some(END), Immediate, false, Iwarp, END),
        (END, Some(END | IMM), Immediate, true, Iwarp, END),
        (IMM, Some(END), Immediate, false, Iwarp, NONE),
        (END | IMM, None, Immediate, false, Immediate, NONE),
        (END, None, Immediate, true, Iwarp, NONE),
    ] {
        let extension = peer.map(|features| Extension { features, user_data: b"", rendezvous: b"" });
        let offer = Offer { extension, ..BASE };
        assert_eq!(negotiate(local, &offer, transport, forced), (words, agreed));
    }
}

#[test]
fn refusals() {
    for (reason, code) in [
        (RefusalReason::Application, 0),
        (RefusalReason::Version, 1),
        (RefusalReason::Parameters, 2),
        (RefusalReason::Resources, 3),
    ] {
        for user_data in [&b""[..], b"go away", &[7; Refusal::USER_DATA_MAX]] {
            let refusal = Refusal { reason, user_data };
            let mut bytes = refusal.encode().expect("fits");
            assert_eq!(bytes[..7], [6 + user_data.len() as u8, b'r', b's', b't', b'r', 1, code]);
            assert_eq!(bytes[7..], *user_data);
            bytes.resize(300, 0);
            assert_eq!(Refusal::decode(&bytes), refusal, "padding");
        }
    }
    let error = Refusal { reason: RefusalReason::Version, user_data: &[0; 250] }.encode();
    assert_eq!(error, Err(UserDataTooLong { length: 250, most: 249 }));
}

#[test]
fn what_is_no_refusal_of_ours_is_the_application_s() {
    let foreign = Refusal { reason: RefusalReason::Application, user_data: b"" };
    let ours = Refusal { reason: RefusalReason::Version, user_data: b"abc" }.encode().expect("fits");
    for length in 0..ours.len() {
        assert_eq!(Refusal::decode(&ours[..length]), foreign, "cut to {length}");
    }
    assert_eq!(Refusal::decode(&[0; 148]), foreign);
    assert_eq!(Refusal::decode(b"\x0bServer full"), foreign);
    let mut changed = ours.clone();
    changed[5] = VERSION + 1;
    assert_eq!(Refusal::decode(&changed), foreign, "another layout");
    changed = ours.clone();
    changed[1] = MAGIC[0] + 1;
    assert_eq!(Refusal::decode(&changed), foreign);
    changed = ours;
    changed[6] = 200;
    let later = Refusal { reason: RefusalReason::Application, user_data: b"abc" };
    assert_eq!(Refusal::decode(&changed), later, "a reason of a later version");
}
