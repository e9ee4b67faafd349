//! Runs decoders of outside bytes on damaged inputs, a bounded number of them with every run of the tests.
//!
//! A target is a function of bytes that must not panic, hang or overflow the stack, whatever it is given; what else
//! must hold (what was decoded encodes again, and so on) it asserts itself. Its corpus is the directory
//! `corpus/NAME` of its crate: every file there is tried first, and an input that fails is written there, so that it
//! is tried ever after. The same functions serve `cargo fuzz` as they are.
//!
//! Targets run on a stack as small as a server's threads have, and in an address space that ends the tests before an
//! input's tree ends the machine.
//!
//! In a build that counts [`steps`], an input may take so many steps for each of its bytes and no more.
//!
//! `WINDLASS_FUZZ_RUNS` sets how many damaged inputs each target gets.

pub mod steps;

use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, setrlimit};

/// How many damaged inputs a target gets unless the environment says otherwise.
const RUNS: u64 = 4000;
/// One input that takes longer hangs, as far as a server is concerned; debug builds on a busy machine included.
const SLOW: Duration = Duration::from_secs(10);
/// The steps that an input may take, however short it is, and those for each of its bytes.
const MAX_STEPS: u64 = 20_000_000;
const MAX_STEPS_PER_BYTE: u64 = 4_000;
/// What tokio gives its threads.
const STACK: usize = 2 << 20;
/// More than all tests of a crate need at once, and less than a request may not ask for.
const MEMORY: u64 = 4 << 30;
/// Inputs do not grow beyond this, but for those that are grown on purpose.
const LARGE: usize = 1 << 16;
/// Pieces that break parsers, whatever they parse.
const PIECES: [&[u8]; 24] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b":",
    b",",
    b"null",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"\0",
    b"\xff\xfe",
    b"\xf0\x9f\xa6\x80",
    b"\xed\xa0\x80",
    b"%",
    b"%2f",
    b"../",
    b"=",
    b"!",
    b"(",
    b"\n",
    b"&a [*a,*a]",
];

/// Tries a target on its corpus, on the seeds, and on what becomes of both by damage. `manifest` is the crate's
/// `CARGO_MANIFEST_DIR`.
///
/// # Panics
///
/// When the target does, or takes too long.
pub fn fuzz(manifest: &str, name: &str, seeds: &[&[u8]], target: impl Fn(&[u8]) + Sync) {
    on_small_stack(|| all(manifest, name, seeds, &target));
}

/// Tries a target on large inputs that once took too long, without damaging them.
///
/// # Panics
///
/// When the target does, or takes too long.
pub fn try_large(name: &str, inputs: &[Vec<u8>], target: impl Fn(&[u8]) + Sync) {
    on_small_stack(|| {
        for (number, input) in inputs.iter().enumerate() {
            let (took, steps) = measured(|| target(input));
            eprintln!("{name} {number}: {} bytes, {took:?}, {steps} steps", input.len());
            if let Some(wrong) = too_long(input.len(), took, steps) {
                panic!("{name} {wrong} for input {number}");
            }
        }
    });
}

/// Runs a target. Returns its time and its steps.
fn measured(run: impl FnOnce()) -> (Duration, u64) {
    let started = Instant::now();
    let ((), steps) = steps::count(run);
    (started.elapsed(), steps)
}

/// Says what is wrong where an input of this length takes too long.
fn too_long(length: usize, took: Duration, steps: u64) -> Option<String> {
    let most = MAX_STEPS + MAX_STEPS_PER_BYTE * length as u64;
    if steps::COUNTED {
        return (steps > most).then(|| format!("takes {steps} steps, of {most},"));
    }
    (took >= SLOW).then(|| format!("takes {took:?}"))
}

fn on_small_stack(run: impl FnOnce() + Send) {
    bound_memory();
    let outcome = thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
        thread.unwrap_or_else(|error| panic!("starting a thread: {error}")).join()
    });
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// An allocation beyond the limit ends the process of the tests, and says how much was asked for.
fn bound_memory() {
    let limit = Some(MEMORY);
    // Where the machine allows less already, that holds.
    let _ = setrlimit(Resource::As, Rlimit { current: limit, maximum: limit });
}

fn all(manifest: &str, name: &str, seeds: &[&[u8]], target: &(impl Fn(&[u8]) + Sync)) {
    let directory = Path::new(manifest).join("corpus").join(name);
    let mut inputs: Vec<Vec<u8>> = corpus(&directory).into_values().collect();
    inputs.extend(seeds.iter().map(|seed| seed.to_vec()));
    assert!(!inputs.is_empty(), "{name} has nothing to begin with");
    inputs.push(Vec::new());
    let try_one = |input: &[u8]| {
        let mut result = Ok(());
        let (took, steps) = measured(|| result = catch_unwind(AssertUnwindSafe(|| target(input))));
        if let Err(panic) = result {
            eprintln!("{name} panics at {}", keep(&directory, input));
            resume_unwind(panic);
        }
        if let Some(wrong) = too_long(input.len(), took, steps) {
            panic!("{name} {wrong} for {}", keep(&directory, input));
        }
    };
    inputs.iter().for_each(|input| try_one(input));
    let runs =
        std::env::var("WINDLASS_FUZZ_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(RUNS);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for _ in 0..runs {
        let mut input = dice.pick(&inputs).clone();
        for _ in 0..=dice.below(4) {
            damage(&mut input, &inputs, &mut dice);
        }
        try_one(&input);
    }
    // Depth is what recursive parsers die of.
    for piece in PIECES {
        try_one(&piece.repeat(100_000 / piece.len()));
    }
    for opening in ["{\"a\":", "[", "- ", "a: {", "\n\u{1}\u{1}", "["] {
        for input in &inputs {
            let mut deep = input[..input.len() / 2].to_vec();
            deep.extend(opening.as_bytes().repeat(20_000));
            try_one(&deep);
        }
    }
}

fn corpus(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name, fs::read(entry.path()).ok()?))
        })
        .collect()
}

/// Writes an input to the corpus; where it is, in words.
fn keep(directory: &Path, input: &[u8]) -> String {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let path = directory.join(format!("{hash:016x}"));
    let written = fs::create_dir_all(directory).and_then(|()| fs::write(&path, input));
    match written {
        Ok(()) => path.display().to_string(),
        Err(error) => format!("an input that cannot be kept ({error}): {input:?}"),
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: usize) -> usize {
        // xorshift: what matters is only that every run is the same.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides.max(1)
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let from = self.below(length + 1);
        from..(from + self.below(32)).min(length)
    }
}

fn damage(input: &mut Vec<u8>, inputs: &[Vec<u8>], dice: &mut Dice) {
    let length = input.len();
    match dice.below(9) {
        0 if length > 0 => input[dice.below(length)] ^= 1 << dice.below(8),
        1 if length > 0 => input[dice.below(length)] = dice.below(256) as u8,
        2 => drop(input.drain(dice.range(length))),
        3 => input.truncate(dice.below(length + 1)),
        4 if length < LARGE => {
            let range = dice.range(length);
            let again = input[range.clone()].repeat(1 + dice.below(20));
            input.splice(range.end..range.end, again);
        }
        5 => {
            // The head of this and the tail of another.
            let other = dice.pick(inputs);
            input.truncate(dice.below(length + 1));
            input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
        }
        6 if length > 0 => {
            // A number, made larger or smaller by one: lengths and tags are numbers.
            let at = dice.below(length);
            input[at] = input[at].wrapping_add(if dice.below(2) == 0 { 1 } else { 255 });
        }
        _ => {
            let at = dice.below(length + 1);
            let piece = dice.pick(&PIECES);
            input.splice(at..at, piece.iter().copied());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_panics_is_found_and_its_input_kept() {
        let directory = std::env::temp_dir().join(format!("windlass-fuzz-{}", std::process::id()));
        let manifest = directory.to_str().unwrap_or_default().to_owned();
        let target = |input: &[u8]| assert!(!input.windows(2).any(|w| w == b"}{"), "found");
        let run = || catch_unwind(|| fuzz(&manifest, "braces", &[b"{\"a\": 1}"], target));
        assert!(run().is_err(), "two braces meet soon enough");
        let kept = corpus(&directory.join("corpus/braces"));
        assert_eq!(kept.len(), 1);
        assert!(kept.values().all(|input| catch_unwind(|| target(input)).is_err()));
        fs::remove_dir_all(&directory).unwrap_or_else(|e| panic!("{e}"));
    }
}
