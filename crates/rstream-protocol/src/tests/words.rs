//! Words: every field, every bit.

use super::super::words::{BYTES_MASK, Control, RECEIVES_MAX, Word};
use super::super::{Violation, WordFormat};

#[test]
fn control_words_keep_their_fields() {
    for bytes in [0, 1, 0x12345, BYTES_MASK] {
        for receives in [0, 1, 0xaa, RECEIVES_MAX] {
            for (end, close) in [(false, false), (true, false), (false, true), (true, true)] {
                let control = Control { bytes, receives, end, close };
                let word = control.encode();
                if control == Control::default() {
                    assert_eq!(Control::decode(word, true), Err(Violation::EmptyControl));
                    continue;
                }
                assert_eq!(Control::decode(word, true), Ok(control));
                assert_eq!(Word::decode(word, true), Ok(Word::Control(control)));
                assert_eq!(Control::decode(word, false).is_ok(), !end && !close);
            }
        }
    }
}

#[test]
fn each_bit_is_known_or_refused() {
    for bit in 0..32 {
        let word = 1_u32 << bit;
        let refused = Err(Violation::UnknownBits { word, unknown: word });
        let control = |endings| Control::decode(word, endings);
        match bit {
            0..20 => assert_eq!(control(false), Ok(Control { bytes: word, ..Control::default() })),
            20..29 => {
                assert_eq!(control(false), Ok(Control { receives: 1 << (bit - 20), ..Control::default() }));
            }
            29 => assert_eq!(control(true), Ok(Control { end: true, ..Control::default() })),
            30 => assert_eq!(control(true), Ok(Control { close: true, ..Control::default() })),
            _ => assert_eq!(control(true), refused),
        }
        if bit >= 29 {
            assert_eq!(control(false), refused);
        }
        let data = word | 1 << 31;
        match bit {
            0..20 => assert_eq!(Word::decode(data, true), Ok(Word::Data { length: word })),
            31 => assert_eq!(Word::decode(data, true), Ok(Word::Data { length: 0 })),
            _ => assert_eq!(
                Word::decode(data, true),
                Err(Violation::UnknownBits { word: data, unknown: word })
            ),
        }
    }
}

#[test]
fn data_words() {
    assert_eq!(WordFormat::Immediate.data_word(77), 0);
    assert_eq!(WordFormat::Iwarp.data_word(77), 0x8000_004d);
    assert_eq!(WordFormat::Iwarp.longest_data(), 0xf_ffff);
    let word = WordFormat::Iwarp.data_word(0xf_ffff);
    assert_eq!(Word::decode(word, false), Ok(Word::Data { length: 0xf_ffff }));
}
