//! The native filter panics: the stream that met it ends, other streams go on, and what the companion counts is right soon after.

use penstock_tests::envoy::NATIVE_SESSIONS;
use penstock_tests::gateway::{pool, slots};
use penstock_tests::{Answer, ClientGroup, ClientRequest, Companion, Envoy, Upstream, binary, run, until};

/// A request that asks for a panic, and what its client gets.
struct Case {
    /// When the hook panics: before it, inside, with the lock held and its effects not carried out, or after it.
    asks: &'static str,
    /// The request reaches the server.
    arrives: bool,
    gets: Gets,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Gets {
    /// The server's answer, whole.
    Answer,
    /// 500 by the filter.
    Error,
    /// The answer has begun: 500, or a cut stream.
    ErrorOrEnd,
}

const fn case(asks: &'static str, arrives: bool, gets: Gets) -> Case {
    Case { asks, arrives, gets }
}

const CASES: &[Case] = &[
    case("before request_headers", false, Gets::Error),
    case("inside request_headers", false, Gets::Error),
    case("after request_headers", false, Gets::Error),
    case("before request_body", false, Gets::Error),
    case("inside request_body", false, Gets::Error),
    case("after request_body", false, Gets::Error),
    case("before response_headers", true, Gets::Error),
    case("inside response_headers", true, Gets::Error),
    case("after response_headers", true, Gets::Error),
    case("before response_body", true, Gets::ErrorOrEnd),
    case("inside response_body", true, Gets::ErrorOrEnd),
    case("after response_body", true, Gets::ErrorOrEnd),
    case("before complete", true, Gets::Answer),
    case("inside complete", true, Gets::Answer),
    case("after complete", true, Gets::Answer),
    case("main tick", true, Gets::Answer),
    case("main message", true, Gets::Answer),
];

#[test]
fn panic_ends_one_stream_and_is_counted() {
    run(async {
        let server = Upstream::scripted().await;
        let more = format!("  health: {{path: null}}\n  queue: {{credits: 'off'}}\n{}", slots(2));
        let companion = Companion::start("", &[pool("p", "m", &[&server], &more)]).await;
        let module = tokio::task::spawn_blocking(binary::panicking_filter).await.expect("built");
        let envoy = Envoy::with_filter(&companion, "one", Some(module)).await;
        let mut bystander = ClientGroup::default();
        bystander.join(&envoy, 1).await;
        bystander.ask(0, "m", "t", "runs meanwhile").await;
        let running = server.next().await;

        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let ask = |panics: String| {
            let post = client.post(envoy.url("/v1/chat/completions"));
            let post = post.json(&ClientRequest::chat("m", &panics).body()).header("x-panic", panics);
            tokio::spawn(async move { Answer::read(post.send().await?).await })
        };
        for (number, Case { asks, arrives, gets }) in (1..).zip(CASES) {
            let asked = ask((*asks).to_owned());
            if *arrives {
                server.next().await.answer();
            }
            match asked.await.expect("a client ends well") {
                Ok(answer) if *gets == Gets::Answer => assert_eq!(answer.status, 200, "{asks}"),
                Ok(answer) => answer.expect_error(500, "internal", ""),
                Err(error) => assert_eq!(*gets, Gets::ErrorOrEnd, "{asks}: {error}"),
            }
            until(&format!("a panic {asks}"), || async {
                let log = envoy.process.log();
                let panics = log.matches("the filter has a defect").count();
                if panics == number { Ok(()) } else { Err(format!("{panics} of {number}")) }
            })
            .await;
            companion.stock("p", 1).await;
            companion.waiting("p", 0).await;
        }
        running.answer();
        assert_eq!(bystander.answers().await[0].1.status, 200);
        companion.stock("p", 0).await;
        let asked = ask("never".to_owned());
        server.next().await.answer();
        assert_eq!(asked.await.expect("no panic").expect("an answer").status, 200);

        let counted = format!("dynamicmodulescustom.penstock_filter_panics: {}", CASES.len());
        until("each panic is counted", || async {
            let page = envoy.stats("panics").await?;
            if page.lines().any(|line| line == counted) { Ok(()) } else { Err(page) }
        })
        .await;
        companion.sessions("one", NATIVE_SESSIONS).await;
    });
}
