//! The leader lease in a file, between two stores as two processes have them.

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn record(term: u64) -> Record {
    Record { term, leader: "10.0.0.1:9190".into(), ..Record::default() }
}

async fn acquire(store: &File, version: u64, term: u64) -> Outcome {
    let record = record(term);
    let acquired = store.execute(&Request::Acquire { version, record }).await;
    acquired.expect("the folder can be written")
}

/// Waits for a view that fits.
async fn until(views: &mut mpsc::Receiver<View>, is_expected: impl Fn(&View) -> bool) -> View {
    let wait = async {
        loop {
            let view = views.recv().await.expect("the watch runs");
            if is_expected(&view) {
                return view;
            }
        }
    };
    tokio::time::timeout(LONG, wait).await.expect("a view that fits")
}

fn watch(path: &Path) -> mpsc::Receiver<View> {
    let (sender, views) = mpsc::channel(16);
    let store = File::new(path);
    tokio::spawn(async move { store.watch(&sender).await });
    views
}

#[tokio::test]
async fn one_process_has_the_lease_until_it_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lease");
    let (first, second) = (File::new(&path), File::new(&path));
    let mut views = watch(&path);
    let free = until(&mut views, |_| true).await;
    assert_eq!((free.holder, free.version), (Holder::None, 0));

    assert_eq!(acquire(&first, 0, 5).await, Outcome::Done { version: 1 });
    assert_eq!(first.observe().await.expect("read").holder, Holder::Me);
    let taken = until(&mut views, |view| view.version == 1).await;
    assert_eq!((taken.holder, taken.record), (Holder::Other, Some(record(5))));
    assert_eq!(acquire(&second, 1, 6).await, Outcome::Refused);

    // The end of a process closes its files.
    drop(first);
    let freed = until(&mut views, |view| view.holder == Holder::None).await;
    assert!(freed.record.expect("it stays").released, "the last leader is certainly gone");
    assert_eq!(acquire(&second, 1, 6).await, Outcome::Done { version: 2 });
}

#[tokio::test]
async fn a_release_leaves_the_record_and_frees_the_lock() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lease");
    let (first, second) = (File::new(&path), File::new(&path));
    acquire(&first, 0, 5).await;
    let mut views = watch(&path);
    until(&mut views, |view| view.holder == Holder::Other).await;
    let released = Request::Release { version: 1, record: Record { released: true, ..record(5) } };
    let outcome = first.execute(&released).await.expect("written");
    assert_eq!(outcome, Outcome::Done { version: 2 });
    let freed = until(&mut views, |view| view.holder == Holder::None).await;
    assert_eq!(freed.version, 2);
    let again = first.execute(&Request::Renew { version: 2 }).await.expect("read");
    assert_eq!(again, Outcome::Refused, "the lease was given up");
    assert_eq!(acquire(&second, 1, 6).await, Outcome::Refused, "the state is a later one");
    assert_eq!(acquire(&second, 2, 6).await, Outcome::Done { version: 3 });
}

#[tokio::test]
async fn the_holder_alone_renews_and_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lease");
    let (first, second) = (File::new(&path), File::new(&path));
    acquire(&first, 0, 5).await;
    for (store, expected) in [(&first, Outcome::Done { version: 1 }), (&second, Outcome::Refused)] {
        let renewed = store.execute(&Request::Renew { version: 1 }).await.expect("read");
        assert_eq!(renewed, expected);
    }
    let write = |version| Request::Write { version, record: record(5) };
    assert_eq!(second.execute(&write(1)).await.expect("read"), Outcome::Refused);
    assert_eq!(first.execute(&write(1)).await.expect("written"), Outcome::Done { version: 2 });
    assert_eq!(first.execute(&write(1)).await.expect("read"), Outcome::Refused);
}

#[tokio::test]
async fn a_deleted_file_ends_the_lease() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lease");
    let first = File::new(&path);
    acquire(&first, 0, 5).await;
    fs::remove_file(&path).expect("it exists");
    let renewed = first.execute(&Request::Renew { version: 1 }).await.expect("read");
    assert_eq!(renewed, Outcome::Refused);
    assert_eq!(acquire(&first, 1, 6).await, Outcome::Done { version: 2 });
}

#[tokio::test]
async fn errors_name_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lease");
    fs::write(folder.path().join("lease.record"), "{").expect("written");
    let error = File::new(&path).observe().await.expect_err("no record");
    assert!(error.to_string().contains("lease.record is no record"), "{error}");
    let nowhere = File::new(&folder.path().join("absent/lease"));
    let version = 0;
    let request = Request::Acquire { version, record: record(1) };
    nowhere.execute(&request).await.expect_err("no folder");
}
