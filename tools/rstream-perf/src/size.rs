//! Sizes in bytes as people write them: `64`, `64k`, `1M`, lists, and ranges by doubling.

use anyhow::{Context, Result, ensure};

const UNITS: &[(char, u32)] = &[('G', 30), ('M', 20), ('K', 10)];

/// One size, at least 1.
pub(crate) fn parse(text: &str) -> Result<usize> {
    let wrong = || format!("'{text}' is no size: 64, 64k and 1M are");
    let unit = UNITS.iter().find(|(letter, _)| text.ends_with([*letter, letter.to_ascii_lowercase()]));
    let number = if unit.is_some() { &text[..text.len() - 1] } else { text };
    let number: usize = number.parse().with_context(wrong)?;
    let size = number.checked_mul(1 << unit.map_or(0, |(_, shift)| *shift)).with_context(wrong)?;
    ensure!(size > 0, wrong());
    Ok(size)
}

/// Sizes with commas between, each of which may be a range: `64..1k` is 64, 128, 256, 512, 1024.
pub(crate) fn parse_list(text: &str) -> Result<Vec<usize>> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once("..").unwrap_or((part, part));
        let (first, last) = (parse(first)?, parse(last)?);
        ensure!(first <= last, "'{part}' ends before it begins");
        sizes.extend(
            std::iter::successors(Some(first), |size| size.checked_mul(2)).take_while(|size| *size <= last),
        );
    }
    Ok(sizes)
}

/// As short as it is exact.
pub(crate) fn text(size: usize) -> String {
    match UNITS.iter().find(|(_, shift)| size != 0 && size.is_multiple_of(1 << shift)) {
        Some((letter, shift)) => format!("{}{letter}", size >> shift),
        None => size.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, size) in [("1", 1), ("64k", 65536), ("64K", 65536), ("1m", 1 << 20), ("2G", 2 << 30)] {
            assert_eq!(parse(text).unwrap(), size);
        }
        for text in ["", "k", "0", "-1", "1kb", "99999999999999999G", "1.5k"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_double() {
        assert_eq!(parse_list("64..300,1k").unwrap(), [64, 128, 256, 1024]);
        assert_eq!(parse_list("7").unwrap(), [7]);
        assert!(parse_list("128..64").is_err());
        assert!(parse_list("64,").is_err());
    }

    #[test]
    fn text_is_short_and_exact() {
        for (size, expected) in [(64, "64"), (1024, "1K"), (65536, "64K"), (1536, "1536"), (3 << 20, "3M")] {
            assert_eq!(text(size), expected);
        }
    }
}
