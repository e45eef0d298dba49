//! Comments that cite requirements.

/// A requirement, cited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Citation {
    /// Number of the RFC.
    pub(crate) rfc: String,
    /// Section and number.
    pub(crate) id: String,
    /// Where.
    pub(crate) file: String,
    /// What the comment stands at or in: a function, a constant, a type, or the file.
    pub(crate) item: String,
    /// Whether that is a test.
    pub(crate) test: bool,
}

const OPEN: &str = "[RFC ";

/// The citations in a file.
pub(crate) fn find(file: &str, text: &str) -> Result<Vec<Citation>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let tests_from = lines.iter().position(|line| line.starts_with("mod tests {")).unwrap_or(lines.len());
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some((_, comment)) = line.split_once("//") else { continue };
        for piece in comment.split(OPEN).skip(1) {
            let cited = piece.split_once(']').and_then(|(inside, _)| inside.split_once(' '));
            let Some((rfc, ids)) = cited.filter(|(_, ids)| ids.contains('-')) else {
                return Err(format!(
                    "{file}:{}: a citation that is none, or not in one line: {OPEN}{piece}",
                    at + 1
                ));
            };
            let item = item(&lines, at).unwrap_or_else(|| stem(file).into());
            let test = at >= tests_from || is_test(file);
            found.extend(ids.split(", ").map(|id| Citation {
                rfc: rfc.into(),
                id: id.into(),
                file: file.into(),
                item: item.clone(),
                test,
            }));
        }
    }
    Ok(found)
}

/// Whether a file holds nothing but tests and what they need.
fn is_test(file: &str) -> bool {
    file.starts_with("tests/")
        || file.contains("/tests/")
        || file.ends_with("/tests.rs")
        || file.starts_with("crates/rdma-testkit/")
}

fn stem(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file).trim_end_matches(".rs")
}

/// The item at which the comment in line `at` stands, or in which.
fn item(lines: &[&str], at: usize) -> Option<String> {
    let comment = lines[at].trim_start();
    if comment.starts_with("//!") {
        return None;
    }
    if comment.starts_with("//") {
        let mut follows = lines[at..].iter().map(|line| line.trim_start());
        let next = follows.find(|line| !line.starts_with("//") && !line.starts_with("#["));
        if let Some(name) = next.and_then(name) {
            return Some(name);
        }
    }
    let mut depth = indent(lines[at]);
    for line in lines[..at].iter().rev().filter(|line| !line.trim().is_empty()) {
        if indent(line) < depth {
            depth = indent(line);
            if let Some(name) = name(line.trim_start()) {
                return Some(name);
            }
        }
    }
    None
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The name of the item that begins with this line.
fn name(line: &str) -> Option<String> {
    let mut words = line
        .split(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
        .filter(|word| !word.is_empty());
    let mut word = words.next()?;
    while ["pub", "crate", "super", "in", "const", "async"].contains(&word) {
        let const_item = word == "const";
        word = words.next()?;
        if const_item && word != "fn" {
            return Some(word.into());
        }
    }
    ["fn", "struct", "enum", "trait", "static", "type"]
        .contains(&word)
        .then(|| words.next())
        .flatten()
        .map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(text: &str) -> Vec<(String, bool)> {
        let found = find("crates/a/src/b.rs", text).unwrap();
        found.into_iter().map(|citation| (citation.item, citation.test)).collect()
    }

    #[test]
    fn a_comment_stands_at_the_item_behind_it_or_in_the_one_around_it() {
        let text = "\
//! Module [RFC 1 1-1].
/// Doc [RFC 1 1-1].
#[must_use]
pub(super) const fn before() {}
/// Constant [RFC 1 1-1].
pub const LIMIT: usize = 1;
impl X {
    fn around(&self) {
        // Remark [RFC 1 1-1].
        if let Some(x) = self {
            y(x); // Behind [RFC 1 1-1].
        }
    }
}
struct Fields {
    /// Field [RFC 1 1-1].
    field: u8,
}
#[cfg(test)]
mod tests {
    /// Test [RFC 1 1-1].
    #[test]
    fn shows() {}
}
";
        let expected = ["b", "before", "LIMIT", "around", "around", "Fields", "shows"];
        let found = items(text);
        assert_eq!(found.iter().map(|(item, _)| &item[..]).collect::<Vec<_>>(), expected);
        assert!(found.iter().map(|(_, test)| *test).eq([false, false, false, false, false, false, true]));
    }

    #[test]
    fn several_are_cited_at_once_and_only_in_comments() {
        let found =
            find("tests/a.rs", "let x = \"[RFC 1 1-1]\"; // [RFC 2 3.4-5, 3.4-6] and [RFC 7 8-9]").unwrap();
        let cited: Vec<_> = found.iter().map(|citation| (&citation.rfc[..], &citation.id[..])).collect();
        assert_eq!(cited, [("2", "3.4-5"), ("2", "3.4-6"), ("7", "8-9")]);
        assert!(found.iter().all(|citation| citation.test));
    }

    #[test]
    fn a_citation_that_is_none_is_refused() {
        for text in ["// [RFC 1 1-1", "// [RFC 1]", "// [RFC 1 4.2]"] {
            assert!(find("a.rs", text).is_err(), "{text}");
        }
    }
}
