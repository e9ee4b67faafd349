//! Runs decoders of untrusted bytes on damaged inputs, a limited number in each test run.
//!
//! A target is a function of bytes that must not panic, hang or overflow the stack. It asserts further properties
//! itself, for example that decoded values can be encoded again. The directory `corpus/NAME` of its crate is its
//! corpus. Every file there is tried first, and failing inputs are stored there for later runs. `cargo fuzz` can use
//! the same functions.
//!
//! Targets run on a stack as small as that of a server's threads. The address space is limited, so that a large tree
//! ends the test and not the machine. So a test with a target runs again in a process of its own: the tests beside it
//! may start programs that need more. Code before the call of [`fuzz`] runs in both processes.
//!
//! In a build that counts [`steps`], each input has a limited number of steps, depending on its length.
//!
//! `WINDLASS_FUZZ_RUNS` sets the number of damaged inputs for each target. Read [`fuzz`] first.

pub mod heap;
pub mod steps;

use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, setrlimit};

/// The default number of damaged inputs for each target.
const RUNS: u64 = 4000;
/// The time after which an input counts as hanging, even in debug builds on a busy machine.
const SLOW: Duration = Duration::from_secs(10);
/// The maximum number of steps of an empty input, and the additional steps for each byte.
const MAX_STEPS: u64 = 20_000_000;
const MAX_STEPS_PER_BYTE: u64 = 4_000;
/// The default stack size of tokio's threads, in bytes.
const STACK: usize = 2 << 20;
/// The limit of the address space, in bytes: more than a target needs, and less than an input could request.
const MEMORY: u64 = 4 << 30;
/// The variable with the name of the target that a process runs.
const TARGET: &str = "WINDLASS_FUZZ_TARGET";
/// The maximum size of damaged inputs, in bytes, except for those that are enlarged on purpose.
const LARGE: usize = 1 << 16;
/// Pieces that break parsers of any format.
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

/// Runs a target on its corpus, on the seeds, and on damaged copies of both. `manifest` is the crate's
/// `CARGO_MANIFEST_DIR`.
///
/// # Panics
///
/// Panics if the target panics or takes too long.
pub fn fuzz(manifest: &str, name: &str, seeds: &[&[u8]], target: impl Fn(&[u8]) + Sync) {
    in_own_process(name, || all(manifest, name, seeds, &target));
}

/// Runs a target on large inputs that once took too long, without damaging them.
///
/// # Panics
///
/// Panics if the target panics or takes too long.
pub fn try_large(name: &str, inputs: &[Vec<u8>], target: impl Fn(&[u8]) + Sync) {
    in_own_process(name, || {
        for (number, input) in inputs.iter().enumerate() {
            let (took, steps) = measured(|| target(input));
            eprintln!("{name} {number}: {} bytes, {took:?}, {steps} steps", input.len());
            if let Some(wrong) = too_long(input.len(), took, steps) {
                panic!("{name} {wrong} for input {number}");
            }
        }
    });
}

/// Runs a target and returns its time and steps.
fn measured(run: impl FnOnce()) -> (Duration, u64) {
    let started = Instant::now();
    let ((), steps) = steps::count(run);
    (started.elapsed(), steps)
}

/// Returns an error message if an input of this length takes too long.
fn too_long(length: usize, took: Duration, steps: u64) -> Option<String> {
    let most = MAX_STEPS + MAX_STEPS_PER_BYTE * length as u64;
    if steps::COUNTED {
        return (steps > most).then(|| format!("takes {steps} steps, of {most},"));
    }
    (took >= SLOW).then(|| format!("takes {took:?}"))
}

/// Runs the calling test again in a process of its own, which calls `run`. The test runs on a thread with its name.
fn in_own_process(name: &str, run: impl FnOnce() + Send) {
    if let Some(target) = std::env::var_os(TARGET) {
        if target == name {
            on_small_stack(run);
        }
        return;
    }
    let thread = thread::current();
    let test = thread.name().unwrap_or_default();
    let own = std::env::current_exe().unwrap_or_else(|e| panic!("finding this program: {e}"));
    let mut command = Command::new(own);
    command.args(["--exact", test, "--include-ignored", "--show-output"]).env(TARGET, name);
    let output = command.output().unwrap_or_else(|e| panic!("starting {name}: {e}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    eprintln!("{out}{err}");
    assert!(output.status.success() && out.contains("1 passed"), "{name} fails in test {test:?}");
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

/// Limits the address space. An allocation beyond the limit aborts the test and prints its size.
fn bound_memory() {
    let limit = Some(MEMORY);
    // A lower limit of the machine stays.
    let _ = setrlimit(Resource::As, Rlimit { current: limit, maximum: limit });
}

fn all(manifest: &str, name: &str, seeds: &[&[u8]], target: &(impl Fn(&[u8]) + Sync)) {
    let directory = Path::new(manifest).join("corpus").join(name);
    let mut inputs: Vec<Vec<u8>> = corpus(&directory).into_values().collect();
    inputs.extend(seeds.iter().map(|seed| seed.to_vec()));
    assert!(!inputs.is_empty(), "{name} has neither a corpus nor seeds");
    inputs.push(Vec::new());
    let try_one = |input: &[u8]| {
        let mut result = Ok(());
        let (took, steps) = measured(|| result = catch_unwind(AssertUnwindSafe(|| target(input))));
        if let Err(panic) = result {
            eprintln!("{name} panics at {}", save(&directory, input));
            resume_unwind(panic);
        }
        if let Some(wrong) = too_long(input.len(), took, steps) {
            panic!("{name} {wrong} for {}", save(&directory, input));
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
    // Recursive parsers fail on deep inputs.
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

/// Stores an input in the corpus and returns its path, or a message with the input.
fn save(directory: &Path, input: &[u8]) -> String {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let path = directory.join(format!("{hash:016x}"));
    let written = fs::create_dir_all(directory).and_then(|()| fs::write(&path, input));
    match written {
        Ok(()) => path.display().to_string(),
        Err(error) => format!("an input that cannot be stored ({error}): {input:?}"),
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: usize) -> usize {
        // xorshift: it only has to be the same in every run.
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
            // The head of this input and the tail of another.
            let other = dice.pick(inputs);
            input.truncate(dice.below(length + 1));
            input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
        }
        6 if length > 0 => {
            // Increment or decrement a byte, because lengths and tags are numbers.
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
    use rustix::process::getrlimit;

    use super::*;

    #[test]
    fn limits_memory_in_another_process_only() {
        let before = getrlimit(Resource::As).current;
        fuzz(env!("CARGO_MANIFEST_DIR"), "limits", &[b"a"], |_| {
            assert!(getrlimit(Resource::As).current.is_some_and(|limit| limit <= MEMORY));
        });
        if std::env::var_os(TARGET).is_none() {
            assert_eq!(getrlimit(Resource::As).current, before);
        }
    }

    #[test]
    fn finds_panicking_target_and_stores_input() {
        let directory = std::env::temp_dir().join(format!("windlass-fuzz-{}", std::process::id()));
        let manifest = directory.to_str().unwrap_or_default().to_owned();
        let target = |input: &[u8]| assert!(!input.windows(2).any(|w| w == b"}{"), "found");
        let run = || catch_unwind(|| all(&manifest, "braces", &[b"{\"a\": 1}"], &target));
        assert!(run().is_err(), "some damaged input has the two braces");
        let kept = corpus(&directory.join("corpus/braces"));
        assert_eq!(kept.len(), 1);
        assert!(kept.values().all(|input| catch_unwind(|| target(input)).is_err()));
        fs::remove_dir_all(&directory).unwrap_or_else(|e| panic!("{e}"));
    }
}
