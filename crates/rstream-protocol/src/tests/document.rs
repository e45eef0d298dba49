//! Compares `docs/protocol.md` with the code: its tables are read and looked up in what is encoded.

use super::super::slots::CONTROL_ENTRIES;
use super::super::words::{
    BYTES_MASK, CLOSE_BIT, DATA_BIT, END_BIT, LENGTH_MASK, RECEIVES_MAX, RECEIVES_SHIFT,
};
use super::super::{
    Extension, Features, GUARANTEED_ROOM, Hello, Offer, Refusal, RefusalReason, SHORT_DATA_MOST, WordFormat,
    hello, tag,
};

const DOCUMENT: &str = include_str!("../../protocol.md");

/// The text from this heading to the next one of any level.
fn section(heading: &str) -> &'static str {
    let start = DOCUMENT.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    let body = &DOCUMENT[start + heading.len() + 2..];
    body.find("\n#").map_or(body, |end| &body[..end])
}

/// The cells of the table with this header row, without it.
fn table(section: &'static str, header: &str) -> Vec<Vec<&'static str>> {
    let rows: Vec<_> = section
        .lines()
        .skip_while(|line| *line != header)
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(!rows.is_empty(), "no table {header}");
    rows
}

/// Checks a layout: the fields lie end to end, and each holds what is expected of its name.
fn assert_layout(rows: &[Vec<&str>], bytes: &[u8], expected: impl Fn(&str) -> Vec<u8>) {
    let mut end = 0;
    for row in rows {
        let (offset, field) = (row[0].parse::<usize>().expect("an offset"), row[2]);
        assert_eq!(offset, end, "{field} begins where the one before it ends");
        end = row[1].parse().map_or(bytes.len(), |size: usize| offset + size);
        assert_eq!(bytes[offset..end], expected(field), "{field}");
    }
    assert_eq!(end, bytes.len());
}

/// The bits of a row such as `0–19` or `31`.
fn mask(bits: &str) -> u32 {
    let (low, high) = bits.split_once('–').unwrap_or((bits, bits));
    let (low, high): (u32, u32) = (low.parse().expect("a bit"), high.parse().expect("a bit"));
    (low..=high).map(|bit| 1 << bit).sum()
}

#[test]
fn connection_data() {
    let rows = table(section("## Connection data"), "| offset | size | field | value |");
    let features = Features::all() - Features::SHARED_MEMORY;
    let offer = Offer {
        ring_address: 0x0102_0304_0506_0708,
        ring_key: 0x1112_1314_1516_1718,
        ring_size: 0x2122_2324,
        receives: 0x3132,
        extension: Some(Extension { features, user_data: b"hello", rendezvous: &[] }),
    };
    assert_layout(&rows, &offer.encode().expect("good"), |field| match field {
        "number of bytes that follow" => vec![30 + 5],
        "address of the receive ring" => offer.ring_address.to_be_bytes().into(),
        "remote key of the receive ring (rkey, STag)" => offer.ring_key.to_be_bytes().into(),
        "size of the receive ring" => offer.ring_size.to_be_bytes().into(),
        "receives posted" => offer.receives.to_be_bytes().into(),
        "protocol version" => vec![2],
        "reserved" => vec![0],
        "extension version" => vec![1],
        "features" => features.bits().to_be_bytes().into(),
        "length of the user data" => vec![5],
        "user data" => b"hello".into(),
        other => panic!("no field {other}"),
    });
    let value = |field| rows.iter().find(|row| row[2] == field).expect("a row")[3];
    let base = Offer { extension: None, ..offer }.encode().expect("good");
    assert!(value("number of bytes that follow").starts_with(&format!("{}, or 30 and", base[0])));
    assert_eq!(value("protocol version"), base[23].to_string());
    assert_eq!(value("length of the user data"), format!("0 to {}", Offer::USER_DATA_MAX));
    assert_eq!(value("receives posted"), format!("at least {}", super::super::LEAST_RECEIVES));
}

#[test]
fn rendezvous() {
    let rows = table(section("### Rendezvous"), "| offset | size | field | value |");
    let bare = Extension { features: Features::empty(), user_data: b"hello", rendezvous: b"come" };
    let met = Extension { features: Features::SHARED_MEMORY, ..bare };
    let [bare, met] = [bare, met].map(|extension| {
        let base = Offer { ring_address: 0, ring_key: 0, ring_size: 1, receives: 3, extension: None };
        Offer { extension: Some(extension), ..base }.encode().expect("good")
    });
    assert_eq!(usize::from(met[0]), met.len() - 1);
    assert_layout(&rows, &met[bare.len()..], |field| match field {
        "length of the rendezvous" => vec![4],
        "rendezvous" => b"come".into(),
        other => panic!("no field {other}"),
    });
}

#[test]
fn features() {
    let rows = table(section("### Features"), "| bit | feature | meaning |");
    for row in &rows {
        let feature = Features::from_name(row[1]).unwrap_or_else(|| panic!("no feature {}", row[1]));
        assert_eq!(feature.bits(), mask(row[0]), "{}", row[1]);
    }
    assert_eq!(rows.len(), Features::all().iter().count());
}

#[test]
fn refusals() {
    let rows = table(section("## Refusal"), "| offset | size | field | value |");
    let refusal = Refusal { reason: RefusalReason::Parameters, user_data: b"no" };
    assert_layout(&rows, &refusal.encode().expect("fits"), |field| match field {
        "number of bytes that follow" => vec![6 + 2],
        "mark" => b"rstr".into(),
        "version of this layout" => vec![1],
        "reason" => vec![2],
        "user data" => b"no".into(),
        other => panic!("no field {other}"),
    });
    let longest = format!("0 to {} bytes", Refusal::USER_DATA_MAX);
    assert!(rows.last().is_some_and(|row| row[3].ends_with(&longest)));
    let reasons = table(section("## Refusal"), "| reason | name | meaning |");
    for row in &reasons {
        let bytes = [6, b'r', b's', b't', b'r', 1, row[0].parse().expect("a code")];
        assert_eq!(format!("{:?}", Refusal::decode(&bytes).reason), row[1]);
    }
    let later = [6, b'r', b's', b't', b'r', 1, reasons.len() as u8];
    assert_eq!(Refusal::decode(&later).reason, RefusalReason::Application, "the table is complete");
}

#[test]
fn connection_data_of_message_endpoints() {
    let rows = table(section("## Message endpoints"), "| offset | size | field | value |");
    assert_layout(&rows, &Hello { tags: true, user_data: b"hello" }.encode(), |field| match field {
        "number of bytes, this one included" => vec![5 + 5],
        "mark" => b"rm".into(),
        "version" => vec![1],
        "kind" => vec![1],
        "user data" => b"hello".into(),
        other => panic!("no field {other}"),
    });
    let longest = format!("0 to {} bytes", hello::USER_DATA_MAX);
    assert!(rows.last().is_some_and(|row| row[3].ends_with(&longest)));
}

#[test]
fn headers_of_messages_with_tags() {
    let rows = table(section("## Tags"), "| offset | size | field | value |");
    let header = tag::Header { tag: Some(0x0102_0304_0506_0708), data: Some(9), length: 0x0a0b };
    assert_layout(&rows, &header.encode(), |field| match field {
        "flags" => vec![3],
        "reserved" => vec![0; 3],
        "length of the payload" => vec![0, 0, 0x0a, 0x0b],
        "tag" => vec![1, 2, 3, 4, 5, 6, 7, 8],
        "data" => vec![0, 0, 0, 0, 0, 0, 0, 9],
        other => panic!("no field {other}"),
    });
}

#[test]
fn words() {
    let messages = section("## Messages");
    let [data, control] = messages.split("Control word:").collect::<Vec<_>>()[..] else {
        panic!("two tables of bits");
    };
    let mut all = 0;
    for row in table(data, "| bits | field |") {
        let mask = mask(row[0]);
        all |= mask;
        match row[1] {
            "data length" => assert_eq!(mask, LENGTH_MASK),
            "one" => assert_eq!(mask, DATA_BIT),
            "zero" => assert_eq!(mask, !(LENGTH_MASK | DATA_BIT)),
            other => panic!("no field {other}"),
        }
    }
    assert_eq!(all, u32::MAX);
    all = 0;
    for row in table(control, "| bits | field |") {
        let mask = mask(row[0]);
        all |= mask;
        match row[1] {
            "ring bytes freed" => assert_eq!(mask, BYTES_MASK),
            "receives freed" => assert_eq!(mask, u32::from(RECEIVES_MAX) << RECEIVES_SHIFT),
            "END" => assert_eq!(mask, END_BIT),
            "CLOSE" => assert_eq!(mask, CLOSE_BIT),
            "zero" => assert_eq!(mask, DATA_BIT),
            other => panic!("no field {other}"),
        }
    }
    assert_eq!(all, u32::MAX);
}

#[test]
fn messages() {
    let rows = table(section("## Messages"), "| | immediates | iWARP words |");
    let row = |name| rows.iter().find(|row| row[0] == name).expect("a row");
    assert_eq!(row("send-queue entries")[1], "one for each");
    assert_eq!(WordFormat::Immediate.data_entries(), 1);
    assert_eq!(row("send-queue entries")[2], "two for data, one for control");
    assert_eq!(WordFormat::Iwarp.data_entries(), 2);
    assert_eq!(row("longest data message")[2], "2^20 − 1");
    assert_eq!(WordFormat::Iwarp.longest_data(), (1 << 20) - 1);
    let short = format!("With SHORT_DATA in force, data of up to {SHORT_DATA_MOST} bytes may travel");
    assert!(section("## Messages").contains(&short));
    let feature = format!("a data message of up to {SHORT_DATA_MOST} bytes may be one Send");
    assert!(section("### Features").contains(&feature));
}

#[test]
fn numbers_in_the_rules() {
    let rules: Vec<_> = section("## Credits").split_whitespace().collect();
    let rules = rules.join(" ");
    for said in [
        format!("half of those posted, rounded down, {RECEIVES_MAX} at most"),
        format!("less than {GUARANTEED_ROOM} bytes of the ring"),
        format!("has {CONTROL_ENTRIES} entries that data never takes"),
    ] {
        assert!(rules.contains(&said), "the document does not say: {said}");
    }
    assert_eq!(BYTES_MASK, (1 << 20) - 1, "said as 2^20 − 1");
    assert!(rules.contains("half the ring, 2^20 − 1 at most"));
}
