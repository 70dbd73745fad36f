// Package settings derives from checked options what the parts of the program take, and plans given objects as the daemon does. The daemon,
// its console and the commands render and diff share it.
//
// In: options of pkg/config, the host's name and addresses; for a plan, objects and facts.
// Out: options of pkg/plan and pkg/model; a plan; the configuration and the flags as text without secrets.
// Never: a change of the kernel, or a request to the API server.
package settings
