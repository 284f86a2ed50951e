// Package healthcheck decides from repeated probes whether servers, ports and
// applications are alive.
package healthcheck
