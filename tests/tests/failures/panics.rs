//! A hook of the native filter panics: its stream ends, and nothing else is harmed.

use penstock_tests::gateway::{pool, slots};
use penstock_tests::{Answer, ClientGroup, ClientRequest, Companion, Envoy, Upstream, binary, run, until};

/// The request that asks for panics, and what its client gets.
struct Case {
    /// When a hook panics: before or after it.
    moment: &'static str,
    /// Envoy's name of the hook.
    hook: &'static str,
    /// The request reaches the server.
    arrives: bool,
    /// The client gets the server's answer, whole.
    is_answered: bool,
}

const CASES: &[Case] = &[
    Case { moment: "before", hook: "request_headers", arrives: false, is_answered: false },
    Case { moment: "after", hook: "request_headers", arrives: false, is_answered: false },
    Case { moment: "before", hook: "request_body", arrives: false, is_answered: false },
    Case { moment: "after", hook: "request_body", arrives: false, is_answered: false },
    Case { moment: "before", hook: "response_headers", arrives: true, is_answered: false },
    Case { moment: "after", hook: "response_headers", arrives: true, is_answered: false },
    Case { moment: "before", hook: "response_body", arrives: true, is_answered: false },
    Case { moment: "after", hook: "response_body", arrives: true, is_answered: false },
    Case { moment: "after", hook: "complete", arrives: true, is_answered: true },
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
        for Case { moment, hook, arrives, is_answered } in CASES {
            let asked = ask(format!("{moment} {hook}"));
            if *arrives {
                server.next().await.answer();
            }
            let answer = asked.await.expect("a client ends well");
            match answer {
                Ok(answer) if *is_answered => assert_eq!(answer.status, 200, "{moment} {hook}"),
                Ok(answer) => answer.expect_error(500, "internal", ""),
                // The answer has begun.
                Err(error) => assert!(*hook == "response_body", "{moment} {hook}: {error}"),
            }
            companion.stock("p", 1).await;
            companion.waiting("p", 0).await;
        }
        running.answer();
        assert_eq!(bystander.answers().await[0].1.status, 200);
        companion.stock("p", 0).await;
        let asked = ask("never".to_owned());
        server.next().await.answer();
        assert_eq!(asked.await.expect("no panic").expect("an answer").status, 200);

        let counted = format!(": {}", CASES.len());
        until("each panic is counted", || async {
            let page = envoy.stats("penstock_filter_panics").await?;
            if page.trim_end().ends_with(&counted) { Ok(()) } else { Err(page) }
        })
        .await;
        let log = envoy.process.log();
        assert_eq!(log.matches("the filter has a defect").count(), CASES.len(), "{log}");
    });
}
