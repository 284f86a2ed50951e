// Sslproxy is the proxy behind proxy redirection: a policy sends connections to it, and what it asks for comes back to the balancer, meets
// an internal policy, and is balanced. It ends TLS with a certificate for each name, checks client certificates, compresses and caches.
//
//	client ──TLS──► VIP:443 ─policy─► sslproxy ──HTTP──► VIP:80 ─internal policy─► server
//
// Certificates are pairs NAME.crt and NAME.key in a directory; SIGHUP reads them anew.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := command(ctx, os.Args[1:], os.Stderr)
	stop()
	os.Exit(status)
}

const usage = `Sslproxy ends TLS for a balancer: a policy sends connections to it, and what it asks for comes back to the balancer and is balanced.

Usage: sslproxy -to ADDR:PORT -certs DIR [options]

  client --TLS--> VIP:443 --policy--> sslproxy --HTTP--> VIP:80 --internal policy--> server

Required:
  -to ADDR:PORT       the internal policy, such as 192.0.2.1:80
  -certs DIR          directory of pairs NAME.crt and NAME.key in PEM. The client's name (SNI) chooses; without one, or for a name that
                      none has, the first in the order of the names does

Options:
  -listen ADDR:PORT   where to listen: a node of the policy's service, and one of the data plane's Config.Proxies (default 127.0.0.1:8443).
                      Connections to the internal policy come from the same address, by which the balancer knows them
  -client-ca FILE     authorities of client certificates, in PEM; without it none is asked for. What a verified certificate says is passed
                      on as X-Client-Cert-Subject and X-Client-Cert-Sha256
  -require-client     refuse clients without a certificate
  -cache BYTES        room for responses that may be kept (RFC 9111), 0 for none (default 67108864)
  -compress=false     do not compress responses (by gzip or zstd, as the client accepts them)
  -proxy-protocol     begin each connection with the client's address (PROXY protocol, version 2); X-Forwarded-For says it in any case
  -check              say what is wrong with all of this, and end

SIGHUP reads the certificates and the authorities anew; if anything is wrong with them, they stay as they were. SIGTERM ends it: what is
asked for is answered first, for five seconds at most. Exit status: 0 ended, or nothing is wrong; 1 failed; 2 wrong usage.
`

// command runs the program.
func command(ctx context.Context, args []string, errs io.Writer) int {
	var cfg config
	flags := flag.NewFlagSet("sslproxy", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	listen := flags.String("listen", "127.0.0.1:8443", "")
	to := flags.String("to", "", "")
	check := flags.Bool("check", false, "")
	flags.StringVar(&cfg.certs, "certs", "", "")
	flags.StringVar(&cfg.clientCA, "client-ca", "", "")
	flags.BoolVar(&cfg.requireClient, "require-client", false, "")
	flags.IntVar(&cfg.cacheBytes, "cache", 64<<20, "")
	flags.BoolVar(&cfg.compress, "compress", true, "")
	flags.BoolVar(&cfg.sendPROXY, "proxy-protocol", false, "")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(errs, usage)
		return 0
	}
	at, err1 := netip.ParseAddrPort(*listen)
	if err1 != nil {
		err1 = fmt.Errorf("-listen %q: want an address and port such as 192.0.2.10:8443", *listen)
	}
	upstream, err2 := netip.ParseAddrPort(*to)
	switch {
	case *to == "":
		err2 = errors.New("-to: missing, want an address and port such as 192.0.2.1:80")
	case err2 != nil:
		err2 = fmt.Errorf("-to %q: want an address and port such as 192.0.2.1:80", *to)
	case err1 == nil && at.Addr().Is4() != upstream.Addr().Is4():
		err2 = fmt.Errorf("-to %v: -listen %v is of the other address family, and connections come from there", upstream, at)
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("%q: want no arguments", flags.Arg(0))
	}
	if err == nil { // else it is unknown what was meant
		err = errors.Join(err1, err2, cfg.validate())
	}
	if err != nil {
		fmt.Fprintf(errs, "sslproxy: %v\n\n%s", err, usage)
		return 2
	}
	log := slog.New(slog.NewTextHandler(errs, nil))
	cfg.upstream, cfg.log = upstream, log
	// What goes to the balancer comes from the address that it knows for a proxy.
	local := net.TCPAddrFromAddrPort(netip.AddrPortFrom(at.Addr(), 0))
	cfg.dial = (&net.Dialer{LocalAddr: local, Timeout: 5 * time.Second}).DialContext
	p, err := newProxy(cfg)
	if err != nil {
		log.Error("start", "err", err)
		return 1
	}
	if *check {
		fmt.Fprintf(errs, "right: %d certificates\n", p.certs.count())
		return 0
	}
	ln, err := net.Listen("tcp", at.String())
	if err != nil {
		log.Error("start", "err", err)
		return 1
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	go func() {
		for range hup {
			if err := p.certs.reload(); err != nil {
				log.Error("certificates stay as they were", "err", err)
			} else {
				log.Info("certificates read", "certificates", p.certs.count())
			}
		}
	}()
	log.Info("listening", "at", ln.Addr(), "to", upstream, "certificates", p.certs.count())
	if err := p.serve(ctx, ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
		log.Error("serve", "err", err)
		return 1
	}
	log.Info("ended")
	return 0
}
