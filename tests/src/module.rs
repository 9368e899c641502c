//! A filter that traps: the filter's module, patched so that the callback for request trailers traps.
//!
//! The filter has no panic path that a test could trigger, and none is built in for tests.

use std::ops::Range;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::binary;
use crate::wait::soon;

/// The callback that Envoy calls for request trailers.
const CALLBACK: &str = "proxy_on_request_trailers";
/// A function body: its size of three bytes, no locals, `unreachable`, `end`.
const TRAP: [u8; 4] = [3, 0, 0x00, 0x0b];

const IMPORTS: u8 = 2;
const EXPORTS: u8 = 7;
const CODE: u8 = 10;
const FUNCTION: u8 = 0;

/// Writes the patched module into a folder.
///
/// # Panics
/// If the filter's module has an unexpected form.
pub async fn trapping(folder: &Path) -> PathBuf {
    let path = folder.join("trapping.wasm");
    let mut command = Command::new(binary::penstock());
    command.arg("filter").arg("--out").arg(&path);
    let written = soon("the module", command.output()).await.expect("penstock runs");
    assert!(written.status.success(), "{written:?}");
    let module = std::fs::read(&path).expect("read a file");
    std::fs::write(&path, patched(&module)).expect("write a file");
    path
}

fn patched(module: &[u8]) -> Vec<u8> {
    let (mut imported, mut callback) = (0, None);
    let mut patched = module[..8].to_vec();
    let mut rest = Bytes { all: module, at: 8 };
    while rest.at < module.len() {
        let begin = rest.at;
        let (kind, size) = (rest.byte(), rest.number());
        let content = rest.at..rest.at + size;
        rest.at = content.end;
        let mut inside = Bytes { all: module, at: content.start };
        match kind {
            IMPORTS => imported = imports(&mut inside),
            EXPORTS => callback = exports(&mut inside),
            CODE => {
                let index = callback.expect("the callback is exported");
                let body = body(&mut inside, index - imported);
                let before = &module[content.start..body.start];
                let after = &module[body.end..content.end];
                patched.push(CODE);
                put(&mut patched, before.len() + TRAP.len() + after.len());
                patched.extend([before, &TRAP, after].concat());
                continue;
            }
            _ => {}
        }
        patched.extend(&module[begin..content.end]);
    }
    patched
}

/// The number of imported functions, which precede the defined ones in the numbering.
fn imports(inside: &mut Bytes<'_>) -> usize {
    let count = inside.number();
    for _ in 0..count {
        inside.name();
        inside.name();
        assert_eq!(inside.byte(), FUNCTION, "the filter imports nothing but functions");
        inside.number();
    }
    count
}

/// The number of the callback among all functions.
fn exports(inside: &mut Bytes<'_>) -> Option<usize> {
    for _ in 0..inside.number() {
        let name = inside.name();
        let (kind, index) = (inside.byte(), inside.number());
        if name == CALLBACK.as_bytes() && kind == FUNCTION {
            return Some(index);
        }
    }
    None
}

/// The range of a function's body, including its size.
fn body(inside: &mut Bytes<'_>, number: usize) -> Range<usize> {
    let count = inside.number();
    assert!(number < count, "{number} of {count}");
    for _ in 0..number {
        let size = inside.number();
        inside.at += size;
    }
    let begin = inside.at;
    let size = inside.number();
    begin..inside.at + size
}

/// Appends a number in LEB128, the encoding of all numbers in a module.
fn put(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    fn byte(&mut self) -> u8 {
        self.at += 1;
        self.all[self.at - 1]
    }

    fn number(&mut self) -> usize {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            number |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return number;
            }
        }
    }

    fn name(&mut self) -> &'a [u8] {
        let size = self.number();
        self.at += size;
        &self.all[self.at - size..self.at]
    }
}
