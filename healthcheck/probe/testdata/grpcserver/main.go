// The grpcserver command serves the gRPC health service, for the tests of package probe.
package main

import (
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	l, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	h := health.NewServer()
	h.SetServingStatus("web", grpc_health_v1.HealthCheckResponse_SERVING)
	h.SetServingStatus("db", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, h)
	log.Fatal(s.Serve(l))
}
