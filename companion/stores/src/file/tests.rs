//! Stores that are damaged, belong to other programs, are in use, or whose process is killed while it writes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use penstock_engine::input::{Band, UsageKind, UsedAt};
use penstock_engine::policy::{BudgetPeriod, CostUnit};
use penstock_model::Parameters;
use tempfile::TempDir;

use super::*;
use crate::write_buffer::UsageKey;
/// The environment variable that passes the file to the test that runs as a child process.
const CHILD_FILE: &str = "PENSTOCK_TEST_STORE";
fn kept(alpha_ms: f64) -> Kept {
    Kept { parameters: Parameters { alpha_ms, beta_ms: 0.05, gamma_ms: 0.0005 }, ttft_bias: 1.25 }
}

fn name(pool: &str, variant: &str) -> (String, String) {
    (pool.into(), variant.into())
}

/// Saves learned models without usage.
fn learn(
    store: &mut StoreFile,
    learned: impl IntoIterator<Item = ((String, String), Kept)>,
) -> Result<(), Error> {
    store.save(learned, &[], &BTreeMap::new())
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("kept.redb")
}

/// Creates a file with two variants of two pools, and closes it.
fn write_two_pools(path: &Path) {
    let mut store = StoreFile::open(path).expect("new");
    let learned = [(name("chat", "a"), kept(8.0)), (name("code", "b"), kept(9.0))];
    learn(&mut store, learned).expect("written");
}

/// The sorted names in a folder.
fn names(folder: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).expect("a folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

#[test]
fn stored_models_are_found_by_pool_and_variant() {
    let folder = folder();
    let path = file(&folder);
    write_two_pools(&path);
    let mut store = StoreFile::open(&path).expect("read");
    assert_eq!(store.models_of("chat"), [("a".to_owned(), kept(8.0))]);
    assert_eq!(store.models_of("code"), [("b".to_owned(), kept(9.0))]);
    assert_eq!(store.models_of("cha"), [], "a pool of another name has learned nothing");
    learn(&mut store, [(name("chat", "a"), kept(10.0)), (name("chat", "c"), kept(11.0))]).expect("written");
    drop(store);
    let store = StoreFile::open(&path).expect("read");
    let expected = [("a".to_owned(), kept(10.0)), ("c".to_owned(), kept(11.0))];
    assert_eq!(store.models_of("chat"), expected);
    assert_eq!(store.models_of("code").len(), 1, "nothing is forgotten when other variants are written");
    assert_eq!(names(&folder), ["kept.redb"]);
}

#[test]
fn a_failed_write_is_repeated_with_the_next_one() {
    let folder = folder();
    let path = file(&folder);
    write_two_pools(&path);
    let mut store = StoreFile::open(&path).expect("read");
    store.database = None;
    let other = StoreFile::open(&path).expect("it is closed");
    let error = learn(&mut store, [(name("chat", "c"), kept(1.0))]).expect_err("in use");
    assert!(matches!(error, Error::Locked(_)), "{error}");
    drop(other);
    std::fs::remove_file(&path).expect("entry is there");
    learn(&mut store, [(name("chat", "d"), kept(2.0))]).expect("written anew");
    drop(store);
    let store = StoreFile::open(&path).expect("read");
    let variants: Vec<_> = store.models_of("chat").into_iter().map(|(variant, _)| variant).collect();
    assert_eq!(variants, ["a", "c", "d"]);
    assert_eq!(store.models_of("code").len(), 1);
}

#[test]
fn a_file_that_is_no_store_is_set_aside_whole() {
    let folder = folder();
    let path = file(&folder);
    let mut expected = Vec::new();
    let noise: Vec<u8> =
        (0..50_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    for (number, contents) in
        [b"x".as_slice(), b"# not a store\n", &[0; 9_000], &noise].into_iter().enumerate()
    {
        std::fs::write(&path, contents).expect("written");
        let mut store = StoreFile::open(&path).expect("begun anew");
        assert_eq!(store.models, Models::new());
        learn(&mut store, [(name("chat", "a"), kept(8.0))]).expect("written");
        drop(store);
        assert_eq!(StoreFile::open(&path).expect("read").models_of("chat").len(), 1);
        let aside = format!("kept.redb.damaged-{}", number + 1);
        assert_eq!(std::fs::read(folder.path().join(&aside)).expect("aside"), contents);
        expected.push(aside);
    }
    expected.insert(0, "kept.redb".into());
    assert_eq!(names(&folder), expected);
}

#[test]
fn an_empty_file_becomes_a_new_store() {
    let folder = folder();
    std::fs::write(file(&folder), b"").expect("written");
    write_two_pools(&file(&folder));
    assert_eq!(names(&folder), ["kept.redb"]);
}

/// Opens a file with these contents. `None`: it was set aside.
fn survives(contents: &[u8]) -> Option<Models> {
    let folder = folder();
    let path = file(&folder);
    std::fs::write(&path, contents).expect("written");
    let mut store = StoreFile::open(&path).expect("read, or begun anew");
    let models = store.models.clone();
    learn(&mut store, [(name("new", "n"), kept(1.0))]).expect("written");
    drop(store);
    let again = StoreFile::open(&path).expect("read").models;
    assert_eq!(again.len(), models.len() + 1);
    (names(&folder).len() == 1).then_some(models)
}

#[test]
fn a_truncated_file_is_set_aside() {
    let folder = folder();
    write_two_pools(&file(&folder));
    let whole = std::fs::read(file(&folder)).expect("entry is there");
    for part in [1, 8, 300, 4_096, 8_192, whole.len() / 2, whole.len() - 1] {
        assert_eq!(survives(&whole[..part]), None, "{part} of {} bytes", whole.len());
    }
}

#[test]
fn a_damaged_byte_is_detected_or_harmless() {
    let folder = folder();
    write_two_pools(&file(&folder));
    let whole = std::fs::read(file(&folder)).expect("entry is there");
    let models = StoreFile::open(&file(&folder)).expect("read").models;
    let used: Vec<usize> = (0..whole.len()).filter(|position| whole[*position] != 0).collect();
    let mut found = 0;
    let step = (used.len() / 60).max(1);
    for position in used.iter().step_by(step) {
        let mut damaged = whole.clone();
        damaged[*position] ^= 0x5a;
        match survives(&damaged) {
            None => found += 1,
            Some(read) => assert_eq!(read, models, "byte {position} changes the models"),
        }
    }
    assert!(found > 0, "no damage was found in any of {} bytes", used.len());
}

#[test]
fn a_file_of_another_format_is_set_aside_whole() {
    let folder = folder();
    let path = file(&folder);
    write_two_pools(&path);
    let database = Database::create(&path).expect("a store");
    let writing = database.begin_write().expect("one writer");
    let next = FORMAT + 1;
    writing.open_table(ABOUT).expect("its table").insert(ABOUT_FORMAT, next).expect("written");
    writing.commit().expect("written");
    drop(database);

    let why = match attempt(&path, Moment::of(Duration::ZERO)) {
        Err(Unusable::Damaged(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why, "its format is 2; this version reads 1");
    assert_eq!(StoreFile::open(&path).expect("begun anew").models, Models::new());
    let aside = Database::open(folder.path().join("kept.redb.damaged-1")).expect("whole");
    let reading = aside.begin_read().expect("readable");
    let about = reading.open_table(ABOUT).expect("its table");
    let format = about.get(ABOUT_FORMAT).expect("readable").map(|format| format.value());
    assert_eq!(format, Some(next));
}

#[test]
fn a_database_of_another_program_is_set_aside() {
    let folder = folder();
    let path = file(&folder);
    let database = Database::create(&path).expect("new");
    let writing = database.begin_write().expect("one writer");
    let theirs: TableDefinition<'_, u64, u64> = TableDefinition::new("theirs");
    writing.open_table(theirs).expect("a table");
    writing.commit().expect("written");
    drop(database);
    assert_eq!(StoreFile::open(&path).expect("begun anew").models, Models::new());
    assert_eq!(names(&folder), ["kept.redb", "kept.redb.damaged-1"]);
}

#[test]
fn tables_of_other_types_are_set_aside() {
    let folder = folder();
    let path = file(&folder);
    let database = Database::create(&path).expect("new");
    let writing = database.begin_write().expect("one writer");
    let about: TableDefinition<'_, u64, &str> = TableDefinition::new("penstock");
    writing.open_table(about).expect("a table");
    writing.commit().expect("written");
    drop(database);
    assert_eq!(StoreFile::open(&path).expect("begun anew").models, Models::new());
    assert_eq!(names(&folder), ["kept.redb", "kept.redb.damaged-1"]);
}

#[test]
fn impossible_values_are_learned_again() {
    let folder = folder();
    let path = file(&folder);
    write_two_pools(&path);
    let database = Database::create(&path).expect("a store");
    let writing = database.begin_write().expect("one writer");
    let mut table = writing.open_table(MODELS).expect("its table");
    let untrue = [
        (f64::NAN, 1.0, 1.0, 1.0),
        (0.0, 1.0, 1.0, 1.0),
        (1.0, -1.0, 1.0, 1.0),
        (1.0, 1.0, f64::INFINITY, 1.0),
        (1.0, 1.0, 1.0, 0.0),
        (1.0, 1.0, 1.0, f64::NAN),
    ];
    for (number, values) in untrue.into_iter().enumerate() {
        let variant = format!("v{number}");
        table.insert(("chat", variant.as_str()), values).expect("written");
    }
    drop(table);
    writing.commit().expect("written");
    drop(database);
    let store = StoreFile::open(&path).expect("read");
    assert_eq!(store.models_of("chat"), [("a".to_owned(), kept(8.0))]);
    assert_eq!(names(&folder), ["kept.redb"]);
}

#[test]
fn a_path_where_no_file_can_be_is_an_error_with_the_path() {
    let folder = folder();
    std::fs::write(folder.path().join("plain"), "x").expect("written");
    let places = [
        folder.path().join("missing").join("kept.redb"),
        folder.path().join("plain").join("kept.redb"),
        folder.path().to_path_buf(),
        PathBuf::from("/proc/kept.redb"),
    ];
    for place in places {
        let error = StoreFile::open(&place).expect_err("no file can be there");
        assert!(matches!(error, Error::Io { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("usage.store: {}: ", place.display())), "{text}");
    }
    assert_eq!(names(&folder), ["plain"], "nothing was set aside");
}

/// Writes sixteen variants at a time, all with the number of the write, and prints each number once it is on the disk,
/// until it is killed.
#[test]
#[ignore = "the process that another test kills"]
fn writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD_FILE) else {
        return;
    };
    let mut store = StoreFile::open(Path::new(&path)).expect("read");
    let begun = store.models.values().next().map_or(0.0, |model| model.parameters.alpha_ms);
    for number in 1_u32.. {
        let kept = kept(begun + f64::from(number));
        let learned = (0..16).map(|variant| (name("chat", &variant.to_string()), kept));
        learn(&mut store, learned).expect("written");
        println!("\nkept {}", kept.parameters.alpha_ms);
    }
}

#[test]
fn killing_a_writing_process_loses_no_saved_model() {
    let folder = folder();
    let path = file(&folder);
    let mut last = 0.0;
    for round in 1..=12 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["file::tests::writes_until_it_is_killed", "--exact", "--ignored", "--nocapture"])
            .env(CHILD_FILE, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this program runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let numbers = lines.map_while(Result::ok).filter_map(|line| {
            line.strip_prefix("kept ").map(|number| number.parse::<f64>().expect("a number"))
        });
        let number = numbers.take(round).last().expect("the child writes");
        let error = StoreFile::open(&path).expect_err("the file is in use");
        assert!(matches!(error, Error::Locked(_)), "{error}");
        child.kill().expect("SIGKILL");
        child.wait().expect("the child ends");

        let store = StoreFile::open(&path).expect("whole");
        let found: Vec<f64> = store.models.values().map(|model| model.parameters.alpha_ms).collect();
        assert_eq!(found.len(), 16);
        assert!(found.iter().all(|alpha_ms| *alpha_ms == found[0]), "half a write: {found:?}");
        assert!(found[0] >= number, "{number} was kept, {} is there", found[0]);
        assert!(found[0] > last, "each child continues");
        last = found[0];
    }
    assert_eq!(names(&folder), ["kept.redb"], "nothing was damaged");
}

fn key(flow: &str) -> UsageKey {
    UsageKey { band: Band::Sheddable, class: "0.chat".into(), flow: flow.into(), model: "m".into() }
}

const MINUTE: Duration = Duration::from_secs(60);

fn windows(pools: &[(&str, Duration)]) -> BTreeMap<String, Duration> {
    pools.iter().map(|(pool, window)| ((*pool).to_owned(), *window)).collect()
}

/// Writes usage at time `now`.
fn used(
    database: &Database,
    pool: &str,
    used: &[(&str, u64)],
    now: Duration,
    windows: &BTreeMap<String, Duration>,
) {
    let now = Moment::of(now);
    let batch = UsageBatch {
        number: 1,
        pool: pool.into(),
        window: Some(windows[pool]),
        taken: now.monotonic,
        used: used.iter().map(|(flow, cost)| (key(flow), *cost)).collect(),
        budget_resets: Arc::default(),
        reset_numbers: Vec::new(),
        budgets: Arc::default(),
        running: None,
    };
    let writing = database.begin_write().expect("one writer");
    rows::write(&writing, &[batch], windows, now).expect("written");
    writing.commit().expect("written");
}

/// By flow: cost and age in seconds.
fn past(database: &Database, pool: &str, window: Duration, now: Duration) -> Vec<(String, u64, u64)> {
    let past = rows::past_usage(database, pool, window, now).expect("readable");
    let mut usage: Vec<_> =
        past.into_iter().map(|used| (used.flow.into(), used.cost.0, used.ago.as_secs())).collect();
    usage.sort();
    usage
}

fn expected(usage: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
    usage.iter().map(|(flow, cost, ago)| ((*flow).to_owned(), *cost, *ago)).collect()
}

#[test]
fn usage_is_stored_as_long_as_its_window() {
    let folder = folder();
    let store = StoreFile::open(&file(&folder)).expect("new");
    let database = store.database.as_ref().expect("open");
    let pools = windows(&[("chat", MINUTE), ("code", MINUTE)]);
    let time = |seconds: u64| Duration::from_secs(1_000_000 + seconds);
    assert_eq!(past(database, "chat", MINUTE, time(0)), []);
    used(database, "chat", &[("a", 5), ("b", 1)], time(0), &pools);
    used(database, "chat", &[("a", 7)], time(0), &pools);
    used(database, "chat", &[("a", 2)], time(30), &pools);
    used(database, "code", &[("c", 9)], time(30), &pools);
    let whole = expected(&[("a", 2, 15), ("a", 12, 45), ("b", 1, 45)]);
    assert_eq!(past(database, "chat", MINUTE, time(45)), whole);
    let first = &rows::past_usage(database, "chat", MINUTE, time(45)).expect("readable")[0];
    let place = (first.band, &*first.class, &*first.model);
    assert_eq!(place, (Band::Sheddable, "0.chat", "m"));
    assert_eq!(past(database, "chat", MINUTE, time(61)), expected(&[("a", 2, 31)]));
    assert_eq!(
        past(database, "chat", 10 * MINUTE, time(61)),
        expected(&[("a", 2, 31), ("a", 12, 61), ("b", 1, 61)]),
        "nothing was written since: a longer window finds entry"
    );
    used(database, "code", &[("d", 1)], time(61), &pools);
    assert_eq!(
        past(database, "chat", 10 * MINUTE, time(61)),
        expected(&[("a", 2, 31)]),
        "usage outside its window is deleted, whichever pool is written"
    );
    // A pool that isn't configured any more.
    let code = windows(&[("code", MINUTE)]);
    used(database, "code", &[("d", 1)], time(200), &code);
    assert_eq!(past(database, "chat", 10 * MINUTE, time(200)), []);
}

#[test]
fn a_long_window_has_wider_buckets() {
    let folder = folder();
    let store = StoreFile::open(&file(&folder)).expect("new");
    let database = store.database.as_ref().expect("open");
    let day = Duration::from_secs(86_400);
    let pools = windows(&[("chat", day)]);
    let begun = Duration::from_secs(288 * 10_000);
    for second in 0..600 {
        used(database, "chat", &[("a", 1)], begun + Duration::from_secs(second), &pools);
    }
    let rows = past(database, "chat", day, begun + Duration::from_secs(600));
    assert_eq!(rows, expected(&[("a", 24, 24), ("a", 288, 312), ("a", 288, 600)]));
}

#[test]
fn rows_from_the_future_are_deleted_beyond_a_window() {
    let folder = folder();
    let store = StoreFile::open(&file(&folder)).expect("new");
    let database = store.database.as_ref().expect("open");
    let pools = windows(&[("chat", MINUTE)]);
    let time = |seconds: u64| Duration::from_secs(1_000_000 + seconds);
    used(database, "chat", &[("near", 1)], time(30), &pools);
    used(database, "chat", &[("far", 1)], time(3_600), &pools);
    assert_eq!(past(database, "chat", MINUTE, time(3_601)), expected(&[("far", 1, 1)]));
    used(database, "chat", &[("near", 1)], time(30), &pools);
    used(database, "chat", &[("now", 1)], time(0), &pools);
    assert_eq!(past(database, "chat", MINUTE, time(0)), expected(&[("near", 1, 0), ("now", 1, 0)]));
    assert_eq!(past(database, "chat", 100 * MINUTE, time(3_601)).len(), 2, "far is gone");
}

#[test]
fn usage_stays_when_the_wall_clock_jumps_ahead_and_after_a_restart_under_that_clock() {
    let folder = folder();
    let path = file(&folder);
    let start = Duration::from_secs(1_000_000_000);
    let jump = Duration::from_secs(400 * 86_400);
    let kept = Windows { usage: Some(MINUTE), has_budgets: true };
    let windows = BTreeMap::from([("chat".to_owned(), kept)]);
    let batch = |taken| UsageBatch {
        number: 1,
        pool: "chat".into(),
        window: Some(MINUTE),
        taken,
        used: [(key("a"), 5)].into(),
        budget_resets: Arc::default(),
        reset_numbers: Vec::new(),
        budgets: [BudgetUsage {
            flow: "a".into(),
            unit: CostUnit::Tokens,
            period: BudgetPeriod::Sliding(MINUTE),
            kind: UsageKind::Used,
            used_at: UsedAt::Ago(Duration::ZERO),
            amount: 7,
        }]
        .into(),
        running: None,
    };
    let store = StoreFile::open_at(&path, start).expect("new");
    let database = store.database.as_ref().expect("open");
    let now = store.clock.moment(start);
    write(database, &Models::new(), &[batch(now.monotonic)], &windows, now).expect("written");
    let jumped = store.clock.moment(start + jump);
    write(database, &Models::new(), &[], &windows, jumped).expect("written");
    drop(store);
    let wall = start + jump + Duration::from_secs(20);
    let store = StoreFile::open_at(&path, wall).expect("read");
    let database = store.database.as_ref().expect("open");
    let now = store.clock.moment(wall);
    let budgets = budget_rows::past(database, "chat", now).expect("readable");
    assert_eq!((budgets.len(), budgets[0].amount), (1, 7));
    let is_recent = |age| age >= Duration::from_secs(18) && age < MINUTE;
    assert!(matches!(budgets[0].used_at, UsedAt::Ago(age) if is_recent(age)), "{budgets:?}");
    assert_eq!(past(database, "chat", MINUTE, now.clock).len(), 1);
}

#[test]
fn a_file_without_tables_for_usage_is_read_and_written() {
    let folder = folder();
    let path = file(&folder);
    let database = Database::create(&path).expect("new");
    let writing = database.begin_write().expect("one writer");
    writing.open_table(ABOUT).expect("its table").insert(ABOUT_FORMAT, FORMAT).expect("written");
    writing
        .open_table(MODELS)
        .expect("its table")
        .insert(("chat", "a"), model_numbers(&kept(8.0)))
        .expect("written");
    writing.commit().expect("written");
    drop(database);
    let store = StoreFile::open(&path).expect("read");
    assert_eq!(store.models_of("chat"), [("a".to_owned(), kept(8.0))]);
    assert!(store.past_usage("chat", MINUTE).expect("readable").is_empty());
    assert_eq!(names(&folder), ["kept.redb"]);
}
