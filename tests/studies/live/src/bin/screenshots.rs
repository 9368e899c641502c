//! Draws docs/images: the dashboard of `penstock demo`, light, dark, in a narrow window, and with old data.
//!
//!     just screenshots      # after 15 minutes, as much as the charts show
//!     just screenshots 2    # after two

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use penstock_tests::{Browser, Process, binary, run, until};
use tokio::process::Command;
use tokio::time::sleep;

/// Width and height in pixels.
type Size = (u32, u32);

const WIDE: Size = (1_280, 1_500);
const NARROW: Size = (360, 1_200);
const SHORT: Size = (1_280, 640);

fn main() {
    let minutes = std::env::args().nth(1).unwrap_or_else(|| "15".to_owned());
    let Ok(minutes) = minutes.parse::<u64>() else {
        eprintln!("usage: screenshots [MINUTES]");
        std::process::exit(2);
    };
    run(draw(Duration::from_secs(60 * minutes)));
}

async fn draw(time: Duration) {
    let mut command = Command::new(binary::penstock());
    command.args(["--log", "warn", "demo"]);
    let mut demo = Process::start("demo", command).await;
    let url = demo.line("dashboard ").await.trim().to_owned();
    println!("dashboard {url}; pictures in {} s", time.as_secs());
    sleep(time).await;
    let browser = Browser::start(WIDE.0, WIDE.1).await;
    browser.open(&url).await;
    shown(&browser, "age", "data is").await;
    let folder = binary::workspace().join("docs/images");
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    shoot(&browser, WIDE, &folder.join("dashboard-light.png")).await;
    browser.prefer_dark(true).await;
    shoot(&browser, WIDE, &folder.join("dashboard-dark.png")).await;
    browser.prefer_dark(false).await;
    shoot(&browser, NARROW, &folder.join("dashboard-narrow.png")).await;
    browser.resize(WIDE.0, WIDE.1).await;
    drop(demo);
    shown(&browser, "notice", "No answer").await;
    shoot(&browser, SHORT, &folder.join("dashboard-old.png")).await;
}

async fn shown(browser: &Browser, id: &str, part: &str) {
    let script = format!("document.getElementById('{id}').textContent");
    until(&format!("{id} shows `{part}`"), || async {
        let text = browser.evaluate(&script).await;
        if text.as_str().is_some_and(|text| text.contains(part)) { Ok(()) } else { Err(text.to_string()) }
    })
    .await;
}

async fn shoot(browser: &Browser, (width, height): Size, file: &Path) {
    browser.resize(width, height).await;
    // The charts are drawn anew for another width.
    sleep(Duration::from_millis(500)).await;
    let encoded = browser.screenshot(width, height).await;
    let png = base64::prelude::BASE64_STANDARD.decode(encoded);
    let png = png.expect("the browser sends base64");
    println!("{}: {} bytes", file.display(), png.len());
    std::fs::write(file, png).expect("the picture can be written");
}
