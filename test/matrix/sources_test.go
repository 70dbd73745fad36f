package matrix

// sourceRanges is the section about source ranges. The scenarios have the packets.
const sourceRanges = `
## With source ranges

Source ranges admit or deny the clients of [node ports, external IPs and load-balancer IPs](source-ranges.md). A source that is admitted reaches the same
endpoints as without source ranges. Packets prove each row, for IPv4 and IPv6:

| situation | a source that is not admitted | proof |
|---|---|---|
| A node port, an external IP or a load-balancer IP, each with its list; TCP and UDP; from a pod, the node and outside | dropped | [source-ranges](../test/scenario/testdata/source-ranges.txtar) |
| A cluster IP | is admitted: cluster IPs have no source ranges | [source-ranges](../test/scenario/testdata/source-ranges.txtar) |
| A list that cannot be read | dropped, like all other sources, at the frontends of the list | [source-ranges](../test/scenario/testdata/source-ranges.txtar) |
| Policy Local: a pod on this node, this node, an external client | dropped, even if all endpoints would serve it | [source-ranges-policies](../test/scenario/testdata/source-ranges-policies.txtar) |
| Session affinity, an algorithm, a connection limit, an endpoint that reaches itself | dropped | [source-ranges-policies](../test/scenario/testdata/source-ranges-policies.txtar) |
| No endpoint | dropped, while an admitted source is refused | [source-ranges-policies](../test/scenario/testdata/source-ranges-policies.txtar) |
| A flow without a reply, after a change of the list | dropped: the flow is deleted | [source-ranges-flows](../test/scenario/testdata/source-ranges-flows.txtar) |
| A flow with a reply, after a change of the list | continues | [source-ranges-flows](../test/scenario/testdata/source-ranges-flows.txtar) |
| A node port on loopback (127.0.0.1, ::1) | refused: the program does not listen | [TestClaimsOf](../pkg/beside/loopback/choice_test.go) |
`
