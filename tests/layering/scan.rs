//! Rust source as tokens, as far as the check needs: identifiers and punctuation with their lines;
//! comments and literals are left out.

/// An identifier, keyword, number, or one character of punctuation (`::` is one token).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// The tokens of a file.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut scanner = Scanner { rest: text, line: 1, tokens: Vec::new() };
    while !scanner.rest.is_empty() {
        scanner.step();
    }
    scanner.tokens
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
    tokens: Vec<Token>,
}

impl Scanner<'_> {
    /// Takes one token, literal, comment or character.
    fn step(&mut self) {
        if self.rest.starts_with("//") {
            self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.skip(comment_length(self.rest));
        } else if let Some(length) = literal_length(self.rest) {
            self.skip(length);
        } else if self.rest.starts_with("::") {
            self.take(2);
        } else {
            let word = word_length(self.rest);
            let first = self.rest.chars().next().map_or(0, char::len_utf8);
            if word > 0 {
                self.take(word);
            } else if self.rest.starts_with(char::is_whitespace) {
                self.skip(first);
            } else {
                self.take(first);
            }
        }
    }

    fn skip(&mut self, length: usize) {
        let (gone, rest) = self.rest.split_at(length);
        self.line += gone.matches('\n').count();
        self.rest = rest;
    }

    fn take(&mut self, length: usize) {
        let text = self.rest[..length].trim_start_matches("r#").to_owned();
        self.tokens.push(Token { text, line: self.line });
        self.skip(length);
    }
}

fn word_length(text: &str) -> usize {
    let raw = if text.starts_with("r#") { 2 } else { 0 };
    let word = text[raw..].find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len() - raw);
    if word == 0 { 0 } else { raw + word }
}

/// Length of a block comment; they nest.
fn comment_length(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// Length of a string or character literal, with its prefix. Lifetimes are none.
fn literal_length(text: &str) -> Option<usize> {
    for prefix in ["br", "cr", "r"] {
        if let Some(after) = text.strip_prefix(prefix) {
            let hashes = after.len() - after.trim_start_matches('#').len();
            if let Some(body) = after[hashes..].strip_prefix('"') {
                let end = format!("\"{}", "#".repeat(hashes));
                let closing = body.find(&end).map_or(body.len(), |at| at + end.len());
                return Some(prefix.len() + hashes + 1 + closing);
            }
        }
    }
    for prefix in ["b", "c", ""] {
        let Some(after) = text.strip_prefix(prefix) else { continue };
        if after.starts_with('"') {
            return Some(prefix.len() + quoted_length(after, '"'));
        }
        if after.starts_with('\'') && prefix != "c" && is_character(after) {
            return Some(prefix.len() + quoted_length(after, '\''));
        }
    }
    None
}

/// Whether a quote begins a character rather than a lifetime.
fn is_character(text: &str) -> bool {
    let mut characters = text.chars().skip(1);
    matches!((characters.next(), characters.next()), (Some('\\'), _) | (Some(_), Some('\'')))
}

/// Length of what is between quotes, both included; a backslash escapes.
fn quoted_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if character == '\\' {
            escaped = true;
        } else if character == quote {
            return at + character.len_utf8();
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<String> {
        tokens(source).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn literals_and_comments_are_left_out() {
        let source = r##"a"x\"y" b'\'' 'c' d r#"e"f"# g b"h" br"i" 'life /* j /* k */ l */ m // n
            o c"p" '\u{41}' r#type"##;
        assert_eq!(texts(source), ["a", "d", "g", "'", "life", "m", "o", "type"]);
    }

    #[test]
    fn paths_and_lines() {
        let found = tokens("use a::b;\n\"1\n2\" x: y");
        let expected = [("use", 1), ("a", 1), ("::", 1), ("b", 1), (";", 1), ("x", 3), (":", 3), ("y", 3)];
        let found: Vec<_> = found.iter().map(|token| (token.text.as_str(), token.line)).collect();
        assert_eq!(found, expected);
    }
}
