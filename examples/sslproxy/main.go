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

// command runs the program: status 0 is success, 1 a failure, 2 wrong usage.
func command(ctx context.Context, args []string, errs io.Writer) int {
	var cfg config
	flags := flag.NewFlagSet("sslproxy", flag.ContinueOnError)
	flags.SetOutput(errs)
	listen := flags.String("listen", "127.0.0.1:8443", "address and port to listen on: a node of the policy's service, and one of Config.Proxies")
	to := flags.String("to", "", "address and port of the internal policy, such as 192.0.2.1:80; required")
	flags.StringVar(&cfg.certs, "certs", "", "directory of NAME.crt and NAME.key; required")
	flags.StringVar(&cfg.clientCA, "client-ca", "", "file of the authorities of client certificates; without it none is asked for")
	flags.BoolVar(&cfg.requireClient, "require-client", false, "refuse clients without a certificate")
	flags.IntVar(&cfg.cacheBytes, "cache", 64<<20, "bytes of responses to cache, 0 for none")
	flags.BoolVar(&cfg.compress, "compress", true, "compress responses by gzip and zstd, as the client accepts them")
	flags.BoolVar(&cfg.sendPROXY, "proxy-protocol", false, "begin each connection with the client's address (PROXY protocol, version 2)")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	log := slog.New(slog.NewTextHandler(errs, nil))
	at, err1 := netip.ParseAddrPort(*listen)
	upstream, err2 := netip.ParseAddrPort(*to)
	if err2 != nil {
		err2 = fmt.Errorf("-to %q: want an address and port: %w", *to, err2)
	}
	if err := errors.Join(err1, err2, cfg.validate()); err != nil {
		fmt.Fprintf(errs, "sslproxy: %v\n", err)
		return 2
	}
	cfg.upstream, cfg.log = upstream, log
	// What goes to the balancer comes from the address that it knows for a proxy.
	local := net.TCPAddrFromAddrPort(netip.AddrPortFrom(at.Addr(), 0))
	cfg.dial = (&net.Dialer{LocalAddr: local, Timeout: 5 * time.Second}).DialContext
	p, err := newProxy(cfg)
	if err != nil {
		log.Error("start", "err", err)
		return 1
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
				log.Info("certificates read")
			}
		}
	}()
	log.Info("listening", "at", ln.Addr(), "to", upstream)
	if err := p.serve(ctx, ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
		log.Error("serve", "err", err)
		return 1
	}
	return 0
}
