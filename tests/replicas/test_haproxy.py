"""deploy/haproxy.cfg with two replicas."""
import replicas

if __name__ == "__main__":
    haproxy = replicas.program("haproxy")
    replicas.main("haproxy.cfg", lambda folder, path: [haproxy, "-db", "-f", path])
