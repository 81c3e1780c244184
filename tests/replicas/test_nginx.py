"""deploy/nginx.conf with two replicas."""
import os

import replicas


def command(folder, path):
    main = os.path.join(folder, "main.conf")
    with open(main, "w") as f:
        f.write(f"daemon off; worker_processes 1; pid {folder}/pid; error_log stderr warn;\nevents {{ worker_connections 512; }}\n"
                f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;\n"
                f"uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; include {path}; }}\n")
    return [nginx, "-p", folder, "-c", main, "-e", "stderr"]


if __name__ == "__main__":
    nginx = replicas.program("nginx")
    replicas.main("nginx.conf", command)
