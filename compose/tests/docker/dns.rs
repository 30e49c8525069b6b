//! The engine's DNS, which clients ask about the addresses of the servers.

use bollard::{
    Docker,
    exec::{CreateExecOptions, StartExecResults},
};
use futures::StreamExt;

use super::{ONE_AT_A_TIME, bring_up, engine, left, spec};

/// What `getent hosts` says in a container.
async fn hosts(docker: &Docker, container: &str, asked: &str) -> String {
    let command = Some(vec!["getent".to_owned(), "hosts".to_owned(), asked.to_owned()]);
    let options = CreateExecOptions { attach_stdout: Some(true), cmd: command, ..Default::default() };
    let exec = docker.create_exec(container, options).await.expect("an exec");
    let started = docker.start_exec(&exec.id, None).await.expect("it starts");
    let StartExecResults::Attached { mut output, .. } = started else { panic!("it is not attached") };
    let mut said = String::new();
    while let Some(part) = output.next().await {
        said += &part.expect("output").to_string();
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn the_address_of_every_node_has_a_name_however_long_the_name_of_the_run_is() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let engine = engine().await;
    let mut spec = spec("dns", "redis", 1);
    spec.run = format!("a-name-that-nearly-fills-a-label-of-dns-{}", spec.run);
    let (running, _output) = bring_up(&engine, &spec).await;
    let docker = Docker::connect_with_defaults().expect("an engine");
    let names = left(&spec.run).await;
    let server = names.iter().find(|name| name.ends_with("-redis-1")).expect("the server's container");
    let mut nodes = 0;
    for (node, address) in running.addresses() {
        let said = hosts(&docker, server.trim_start_matches('/'), &address.to_string()).await;
        // A container knows its own address from its file of hosts, under the node's own name.
        assert!(said.contains(node.as_str()), "{node}: {said:?}");
        nodes += 1;
    }
    assert!(nodes >= 3, "server, resource, worker");
    running.down().await.expect("down");
    assert_eq!(left(&spec.run).await, Vec::<String>::new());
}
