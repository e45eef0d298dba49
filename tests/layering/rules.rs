//! The rules, applied to the tokens of files.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use super::scan::Token;

/// The layers: top-level modules, and those of ours that each may use.
const LAYERS: [(&str, &[&str]); 4] = [
    ("stream", &["stream"]),
    ("verbs", &["verbs"]),
    ("abi", &["abi"]),
    ("provider", &["provider", "abi", "stream", "verbs"]),
];

/// Where `unsafe` may stand.
const UNSAFE_MODULES: [&[&str]; 4] = [&["abi"], &["verbs", "memory"], &["verbs", "ibv"], &["verbs", "shm"]];

/// Other crates that `stream` may name.
const STREAM_CRATES: [&str; 2] = ["core", "alloc"];
/// Parts of `core` that `stream` does not use: atomics, pointers, C types.
const STREAM_NEVER: [[&str; 2]; 3] = [["core", "sync"], ["core", "ptr"], ["core", "ffi"]];
/// The bindings inside `abi`, which only `abi` sees.
const RAW_MODULE: [&str; 2] = ["abi", "sys"];

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    file: PathBuf,
    line: usize,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src/{}:{}: {}", self.file.display(), self.line, self.what)
    }
}

/// A place in a file: in which module, and whether it is compiled for tests only.
#[derive(Debug, Clone)]
struct Scope {
    module: Vec<String>,
    test: bool,
}

/// Checks the paths and the uses of `unsafe` of one file (`file` is the path below `src`).
pub(crate) fn check_file(file: &Path, tokens: &[Token]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut report = |line: usize, what: String| {
        violations.push(Violation { file: file.to_owned(), line, what });
    };
    let scopes = scopes(file, tokens);
    for (at, token) in tokens.iter().enumerate() {
        let scope = &scopes[at];
        if token.text == "unsafe" && !unsafe_allowed(tokens, at, &scope.module) {
            report(token.line, format!("unsafe in {}", name(&scope.module)));
        }
        if !begins_path(tokens, at) {
            continue;
        }
        for path in paths(tokens, at) {
            if let Some(what) = forbidden(scope, &path) {
                report(token.line, format!("{} uses {}: {what}", name(&scope.module), path.join("::")));
            }
        }
    }
    violations
}

/// Checks that every module that may not hold `unsafe`, and is not below one that says so, says
/// so: `#[forbid(unsafe_code)]` on its `mod` line, or `#![forbid(unsafe_code)]` in its file.
pub(crate) fn check_forbids(files: &[(&Path, Vec<Token>)]) -> Vec<Violation> {
    let mut forbidding: BTreeSet<Vec<String>> = BTreeSet::new();
    let mut declared = Vec::new();
    for (file, tokens) in files {
        if tokens_at(tokens, 0, &["#", "!", "[", "forbid", "(", "unsafe_code"]) {
            forbidding.insert(module_of(file));
        }
        let scopes = scopes(file, tokens);
        for at in 0..tokens.len() {
            let Some(module) = declaration(tokens, at, &scopes[at].module) else { continue };
            if attributes_before(tokens, at).iter().any(|attribute| forbids(attribute)) {
                forbidding.insert(module.clone());
            }
            declared.push((file, tokens[at].line, module));
        }
    }
    declared.retain(|(_, _, module)| {
        let covered = (1..=module.len()).any(|length| forbidding.contains(&module[..length]));
        !covered && !touches_unsafe(module)
    });
    let violation = |(file, line, module): (&&Path, usize, Vec<String>)| Violation {
        file: file.to_path_buf(),
        line,
        what: format!("{} does not forbid unsafe_code", name(&module)),
    };
    declared.into_iter().map(violation).collect()
}

/// What is wrong with `path`, used in `scope`.
fn forbidden(scope: &Scope, path: &[String]) -> Option<&'static str> {
    let layer = scope.module.first().map(String::as_str);
    let (name, allowed) = LAYERS.iter().find(|(name, _)| Some(*name) == layer)?;
    let Some(target) = resolve(&scope.module, path) else {
        return outside(name, &scope.module, path, scope.test);
    };
    match target.first() {
        None => Some("the root of the crate reaches every layer"),
        Some(first) if !allowed.contains(&first.as_str()) => Some("that layer is not below it"),
        Some(_) if *name != "abi" && starts_with(&target, &RAW_MODULE) => Some("raw C types stay in abi"),
        Some(_) => None,
    }
}

/// What is wrong with a path into another crate.
fn outside(layer: &str, module: &[String], path: &[String], test: bool) -> Option<&'static str> {
    let root = path.first().map_or("", String::as_str);
    let is_c = |text: &String| text.starts_with("c_");
    let c_types = (starts_with(path, &["std", "ffi"]) || starts_with(path, &["core", "ffi"]))
        && path.get(2).is_some_and(is_c);
    match layer {
        "stream" if test && root == "std" => None,
        "stream" if !STREAM_CRATES.contains(&root) => Some("stream has nothing but core and alloc"),
        "stream" if STREAM_NEVER.iter().any(|never| starts_with(path, never)) => {
            Some("stream has no atomics, pointers or C types")
        }
        "verbs" if root == "rdma_sys" && !starts_with(module, &["verbs", "ibv"]) => {
            Some("rdma_sys is for verbs::ibv")
        }
        "provider" if root == "libc" || c_types || starts_with(path, &["std", "os", "raw"]) => {
            Some("raw C types stay in abi")
        }
        _ => None,
    }
}

/// The crate's modules that a path names, from the root; `None` for a path into another crate.
fn resolve(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut target = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => module.to_vec(),
        _ => return None,
    };
    for part in path {
        match part.as_str() {
            "crate" | "self" => {}
            "super" => drop(target.pop()),
            "*" => break,
            _ => target.push(part.clone()),
        }
    }
    Some(target)
}

/// Whether a path begins at this token that the rules speak of: one of ours, or another crate's.
fn begins_path(tokens: &[Token], at: usize) -> bool {
    let text = tokens[at].text.as_str();
    let before = |distance: usize| at.checked_sub(distance).map_or("", |at| tokens[at].text.as_str());
    let generic = before(2) == ">" && before(3) != "-";
    if before(1) == "::" && (generic || is_word(before(2))) {
        return false;
    }
    // `pub(in crate::x)` only narrows what may be seen; `use` groups are taken with their root.
    if before(1) == "in" && before(2) == "(" {
        return false;
    }
    let roots = ["crate", "self", "super", "std", "core", "alloc", "libc", "rdma_sys"];
    let next = tokens.get(at + 1).map_or("", |token| token.text.as_str());
    roots.contains(&text) && (next == "::" || (before(1) == "use" && is_word(text)))
}

/// All paths of the tree that begins at a token: one, or one for each leaf of a `use` group.
fn paths(tokens: &[Token], at: usize) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    leaves(tokens, at, &[], &mut found);
    found
}

/// Collects the leaves of a path tree; answers where it ends.
fn leaves(tokens: &[Token], mut at: usize, prefix: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = prefix.to_vec();
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    loop {
        if text(at) == "{" {
            at += 1;
            while !["}", ""].contains(&text(at)) {
                at = leaves(tokens, at, &path, found);
                while text(at) == "as" || text(at) == "," || is_word(text(at)) && text(at - 1) == "as" {
                    at += 1;
                }
            }
            return at + 1;
        }
        if !is_word(text(at)) && text(at) != "*" {
            break;
        }
        path.push(text(at).to_owned());
        at += 1;
        if text(at) != "::" {
            break;
        }
        at += 1;
    }
    // Whatever this is, go on behind it.
    let end = if path.len() == prefix.len() { at + 1 } else { at };
    found.push(path);
    end
}

/// The scope of every token of a file.
fn scopes(file: &Path, tokens: &[Token]) -> Vec<Scope> {
    let module = module_of(file);
    let test = module.iter().any(|part| part == "tests");
    let mut current = Scope { module, test };
    // The scopes to return to, with the depth of braces at which each ends.
    let mut outer: Vec<(usize, Scope)> = Vec::new();
    let mut depth = 0;
    let mut answer = Vec::with_capacity(tokens.len());
    let mut entering = None;
    for (at, token) in tokens.iter().enumerate() {
        answer.push(current.clone());
        match token.text.as_str() {
            "mod" if tokens.get(at + 2).is_some_and(|brace| brace.text == "{") => {
                let mut inner = current.clone();
                inner.module.push(tokens[at + 1].text.clone());
                inner.test |= attributes_before(tokens, at).iter().any(|attribute| is_test_only(attribute));
                entering = Some(inner);
            }
            "{" => {
                depth += 1;
                if let Some(inner) = entering.take() {
                    outer.push((depth, std::mem::replace(&mut current, inner)));
                }
            }
            "}" => {
                if let Some((_, scope)) = outer.pop_if(|(opened, _)| *opened == depth) {
                    current = scope;
                }
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
    }
    answer
}

/// The module that a file is, from the root.
fn module_of(file: &Path) -> Vec<String> {
    let stem = file.with_extension("");
    let mut module: Vec<String> = stem.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let last = module.last().map_or("", String::as_str);
    if last == "mod" || (module.len() == 1 && ["lib", "main"].contains(&last)) {
        module.pop();
    }
    module
}

/// The module that is declared at this token, if one is.
fn declaration(tokens: &[Token], at: usize, scope: &[String]) -> Option<Vec<String>> {
    let after = tokens.get(at + 2)?.text.as_str();
    if tokens[at].text != "mod" || ![";", "{"].contains(&after) {
        return None;
    }
    Some([scope, &[tokens[at + 1].text.clone()]].concat())
}

/// The attributes in front of an item, whose keyword is at this token: the tokens inside `#[…]`.
fn attributes_before(tokens: &[Token], keyword: usize) -> Vec<Vec<&str>> {
    let text = |at: usize| tokens[at].text.as_str();
    let mut at = keyword;
    // The visibility.
    if at > 0 && text(at - 1) == ")" {
        while at > 0 && text(at - 1) != "(" {
            at -= 1;
        }
        at = at.saturating_sub(1);
    }
    if at > 0 && text(at - 1) == "pub" {
        at -= 1;
    }
    let mut attributes = Vec::new();
    while at > 0 && text(at - 1) == "]" {
        let end = at - 1;
        let Some(start) = (0..end).rev().find(|&start| text(start) == "#") else { break };
        if text(start + 1) != "[" {
            break;
        }
        attributes.push((start + 2..end).map(text).collect());
        at = start;
    }
    attributes
}

fn is_test_only(attribute: &[&str]) -> bool {
    attribute.starts_with(&["cfg", "(", "test", ")"])
}

fn forbids(attribute: &[&str]) -> bool {
    attribute.first() == Some(&"forbid") && attribute.contains(&"unsafe_code")
}

/// Whether `unsafe` may stand at this token.
fn unsafe_allowed(tokens: &[Token], at: usize, module: &[String]) -> bool {
    // The root exports the one symbol of the library.
    let exports = module.is_empty()
        && at >= 2
        && tokens_at(tokens, at - 2, &["#", "[", "unsafe", "(", "no_mangle", ")", "]"]);
    exports || UNSAFE_MODULES.iter().any(|allowed| starts_with(module, allowed))
}

/// Whether a module may hold `unsafe`, or has one below it that may.
fn touches_unsafe(module: &[String]) -> bool {
    UNSAFE_MODULES.iter().any(|allowed| {
        starts_with(module, allowed) || module.iter().zip(*allowed).all(|(part, allowed)| part == allowed)
    })
}

fn starts_with(path: &[String], prefix: &[&str]) -> bool {
    path.len() >= prefix.len() && path.iter().zip(prefix).all(|(part, prefix)| part == prefix)
}

fn tokens_at(tokens: &[Token], at: usize, texts: &[&str]) -> bool {
    texts
        .iter()
        .enumerate()
        .all(|(index, text)| tokens.get(at + index).is_some_and(|token| token.text == *text))
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn name(module: &[String]) -> String {
    if module.is_empty() { "the root".into() } else { module.join("::") }
}
