// Package settings derives the options of the program's parts from checked options, and plans given objects as the
// daemon does. The daemon, its console and the commands render and diff share it.
//
// In: options of pkg/config, the host's name and addresses; for a plan, objects and facts.
// Out: options of pkg/plan and pkg/model; a plan; the configuration and the flags as text without secrets.
// Never: changes the kernel or sends a request to the API server.
package settings
