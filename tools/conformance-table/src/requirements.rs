//! The list of requirements of an RFC.
//!
//! A file is made of blocks with an empty line between them: the RFC's name, what the list leaves out, and
//! the requirements. A requirement begins with a line of its id, level and status. The id is the section and
//! a number within it. Its text follows, and, unless it is done, a reason:
//!
//! ```text
//! 8.1.1-2 MUST open
//! A key that is limited to one stream works on no other stream.
//! Reason: keys belong to protection domains.
//! ```

/// The requirements of an RFC.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Requirements {
    /// Number of the RFC.
    pub(crate) rfc: String,
    /// What it specifies.
    pub(crate) name: String,
    /// What the list leaves out.
    pub(crate) preface: String,
    /// In the order of the RFC.
    pub(crate) all: Vec<Requirement>,
}

/// One of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Requirement {
    /// Section and number.
    pub(crate) id: String,
    /// As RFC 2119 has it.
    pub(crate) level: String,
    /// Whether it is met.
    pub(crate) status: Status,
    /// What it asks.
    pub(crate) text: String,
    /// Why it is not done.
    pub(crate) reason: String,
}

/// Whether a requirement is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// It is.
    Done,
    /// In part.
    Partly,
    /// It is not.
    Open,
    /// It is the affair of another part of the system.
    Other,
}

impl Status {
    /// Whether code and tests cite it.
    pub(crate) fn is_cited(self) -> bool {
        matches!(self, Self::Done | Self::Partly)
    }

    /// What it is called in the table; nothing if it is done.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Done => "",
            Self::Partly => "Partly",
            Self::Open => "Open",
            Self::Other => "Elsewhere",
        }
    }
}

impl Requirements {
    /// Reads a file, whose name ends in the number of its RFC.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, String> {
        let rfc: String =
            file.rsplit('/').next().unwrap_or(file).chars().filter(char::is_ascii_digit).collect();
        let mut blocks = text.split("\n\n").map(str::trim).filter(|block| !block.is_empty());
        let (Some(name), Some(preface)) = (blocks.next(), blocks.next()) else {
            return Err(format!("{file} has no name and preface"));
        };
        let mut all: Vec<Requirement> = Vec::new();
        for block in blocks {
            let requirement = Requirement::parse(block).ok_or_else(|| format!("{file}: {block}"))?;
            if all.iter().any(|known| known.id == requirement.id) {
                return Err(format!("{file} has {} twice", requirement.id));
            }
            all.push(requirement);
        }
        Ok(Self { rfc, name: name.into(), preface: joined(preface), all })
    }
}

impl Requirement {
    fn parse(block: &str) -> Option<Self> {
        let (header, body) = block.split_once('\n')?;
        let (id, header) = header.split_once(' ')?;
        let (level, status) = header.rsplit_once(' ')?;
        let status = match status {
            "done" => Status::Done,
            "partly" => Status::Partly,
            "open" => Status::Open,
            "other" => Status::Other,
            _ => return None,
        };
        let (text, reason) = body.split_once("\nReason: ").unwrap_or((body, ""));
        let (section, number) = id.split_once('-')?;
        let numbers = section.split('.').chain([number]).all(|part| part.parse::<u16>().is_ok());
        let level_known = ["MUST", "MUST NOT", "SHOULD", "SHOULD NOT"].contains(&level);
        let reasoned = reason.is_empty() == (status == Status::Done);
        (numbers && level_known && reasoned).then(|| Self {
            id: id.into(),
            level: level.into(),
            status,
            text: joined(text),
            reason: joined(reason),
        })
    }
}

/// The lines of a paragraph as one.
fn joined(lines: &str) -> String {
    lines.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(block: &str) -> Result<Requirements, String> {
        Requirements::parse("rfc1.txt", &format!("Name\n\nPreface\nof two lines.\n\n{block}\n"))
    }

    #[test]
    fn a_requirement_is_read() {
        let read = parse("8.1.1-2 MUST NOT open\nOne\ntwo.\nReason: three\nfour.").unwrap();
        assert_eq!(
            (&read.rfc[..], &read.name[..], &read.preface[..]),
            ("1", "Name", "Preface of two lines.")
        );
        let [only] = &read.all[..] else { panic!("{:?}", read.all) };
        assert_eq!((&only.id[..], &only.level[..], only.status), ("8.1.1-2", "MUST NOT", Status::Open));
        assert_eq!((&only.text[..], &only.reason[..]), ("One two.", "three four."));
    }

    #[test]
    fn what_is_no_requirement_is_refused() {
        for block in [
            "1-1 MUST done",
            "1-x MUST done\nText.",
            "1 MUST done\nText.",
            "1-1 MUSS done\nText.",
            "1-1 MUST maybe\nText.",
            "1-1 MUST open\nText.",
            "1-1 MUST done\nText.\nReason: none needed.",
            "1-1 MUST done\nText.\n\n1-1 MUST done\nText.",
        ] {
            assert!(parse(block).is_err(), "{block}");
        }
        assert!(parse("1-1 MUST done\nText.\n\n1-2 MUST done\nText.").is_ok());
    }
}
